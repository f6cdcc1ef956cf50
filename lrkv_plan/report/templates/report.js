"use strict";
(function () {
  // Numbers and texts are looked up in the page's data; nothing is computed from them but places.
  const folded = Array.from(document.querySelectorAll("details"));
  folded.forEach(function (one) { one.open = false; });
  let opened = [];
  window.addEventListener("beforeprint", function () {
    opened = folded.filter(function (one) { return !one.open; });
    opened.forEach(function (one) { one.open = true; });
  });
  window.addEventListener("afterprint", function () { opened.forEach(function (one) { one.open = false; }); });

  const holder = document.getElementById("grid-data");
  if (holder === null) return;
  const grid = JSON.parse(holder.textContent);
  const SVG = "http://www.w3.org/2000/svg";
  const RANK = 0, CONTEXT = 1, BATCH = 2, FORMAT = 3;
  const byId = function (id) { return document.getElementById(id); };
  const all = function (selector) { return Array.from(document.querySelectorAll(selector)); };
  const start = grid.axes.map(function (axis) { return axis.start; });
  const covered = new Set(grid.designs.filter(function (one) { return one.covered; }).map(function (one) { return one.line; }));
  const state = { at: start.slice(), equal: false, along: "context", hidden: new Set(covered) };

  function place(measure, at) {
    return measure.strides.reduce(function (sum, stride, axis) { return sum + stride * at[axis]; }, 0);
  }
  function found(design, key, at, what) {
    const measure = design.measures[key];
    return measure.column === null ? null : grid.columns[measure.column][what][place(measure, at)];
  }
  function value(design, key, at) { return found(design, key, at, "values"); }
  function text(design, key, at) { return found(design, key, at, "texts"); }
  function chosen() { return state.equal ? "equal" : "planned"; }
  function inSet(design) { return design.sets.indexOf(chosen()) >= 0; }
  function compared() { const n = grid.compared[chosen()]; return n === null ? null : grid.designs[n]; }
  function said(phrase, words) {
    return grid.phrases[phrase].replace(/\{(\w+)\}/g, function (_, name) { return words[name]; });
  }

  // ---- the verdict, as verdict.py puts it together

  function usersSentence(own, other, at) {
    const n = value(own, "total_sequences", at);
    if (n === null || (other !== null && value(other, "total_sequences", at) === null)) {
      return said("unknown", { where: grid.where });
    }
    const phrase = n === 0 ? "no_user" : n === 1 ? "one_user" : "users";
    const words = {
      where: grid.where, own: text(own, "attention", at),
      own_users: said(phrase, { n: text(own, "total_sequences", at), context: grid.axes[CONTEXT].texts[at[CONTEXT]] }),
    };
    if (other === null) return said("held", words);
    words.n = text(other, "total_sequences", at);
    words.other = text(other, "attention", at);
    return said("held_both", words);
  }
  function timeOf(design, at) {
    return said("time", {
      step: text(design, "step_s", at), band: text(design, "step_band", at),
      mark: text(design, "time_basis", at), name: text(design, "attention", at),
    });
  }
  function timeSentence(own, other, at) {
    const both = other === null ? [own] : [other, own];
    for (const one of both) {
      for (const key of ["step_s", "batch_fits"]) {
        const refused = one.measures[key].refused;
        if (refused !== undefined) return said("refused", { reason: refused });
      }
    }
    const fitting = both.filter(function (one) { return value(one, "batch_fits", at); });
    const words = { batch: grid.axes[BATCH].texts[at[BATCH]] };
    if (fitting.length === 0 && other === null) return said("not", words);
    if (fitting.length === 0) {
      words.own = text(own, "attention", at);
      words.other = text(other, "attention", at);
      return said("neither", words);
    }
    words.one = timeOf(fitting[0], at);
    if (both.length === 1) return said("alone", words);
    if (fitting.length === 1) {
      words.name = text(fitting[0] === own ? other : own, "attention", at);
      return said("only", words);
    }
    words.two = timeOf(fitting[1], at);
    for (const pair of [both, both.slice().reverse()]) {
      if (value(pair[0], "high_s", at) < value(pair[1], "low_s", at)) {
        words.name = text(pair[0], "attention", at);
        return said("faster", words);
      }
    }
    return said("close", words);
  }

  // ---- the command and the address of this point

  function quoted(word) {
    return /^[\w@%+=:,./-]+$/.test(word) ? word : "'" + word.replace(/'/g, "'\"'\"'") + "'";
  }
  function command() {
    const own = grid.designs[0], other = compared();
    const named = state.equal ? grid.designs.filter(function (one) { return inSet(one) && one.sets.length === 1; })
      : other === null ? [] : [other];
    const words = [grid.command];
    named.filter(function (one) { return one !== own; }).forEach(function (one) {
      words.push("--attention", quoted(text(one, "attention", state.at)));
    });
    words.push("--context-tokens", String(grid.axes[CONTEXT].values[state.at[CONTEXT]]));
    words.push("--batch-size", String(grid.axes[BATCH].values[state.at[BATCH]]));
    words.push("--kv-dtype", quoted(grid.axes[FORMAT].values[state.at[FORMAT]]));
    return words.join(" ");
  }
  function sorted(lines) { return Array.from(lines).sort().join(","); }
  function fragment() {
    const parts = [RANK, CONTEXT, BATCH].map(function (axis) {
      return grid.axes[axis].fragment + "=" + grid.axes[axis].values[state.at[axis]];
    });
    if (state.at[FORMAT] !== start[FORMAT]) parts.push("kv=" + grid.axes[FORMAT].values[state.at[FORMAT]]);
    if (state.equal) parts.push("equal=1");
    if (state.along !== "context") parts.push("along=" + state.along);
    if (sorted(state.hidden) !== sorted(covered)) parts.push("hide=" + sorted(state.hidden));
    return "#" + parts.join("&");
  }
  function write() {
    try { history.replaceState(null, "", fragment()); } catch (error) { location.replace(fragment()); }
  }
  function read() {
    const words = location.hash.slice(1);
    if (words.indexOf("=") < 0) return false;
    const asked = new URLSearchParams(words), unknown = [];
    const lines = new Set(grid.designs.map(function (one) { return one.line; }));
    state.at = start.slice();
    state.equal = false;
    state.along = "context";
    state.hidden = new Set(covered);
    asked.forEach(function (word, name) {
      const axis = grid.axes.findIndex(function (one) { return one.fragment === name; });
      const index = axis < 0 ? -1 : grid.axes[axis].values.map(String).indexOf(word);
      if (index >= 0) state.at[axis] = index;
      else if (name === "equal" && word === "1" && byId("equal") !== null) state.equal = true;
      else if (name === "along" && (word === "context" || word === "batch") && byId("plot-steps") !== null) state.along = word;
      else if (name === "hide" && (word === "" || word.split(",").every(function (one) { return lines.has(one); }))) {
        state.hidden = new Set(word === "" ? [] : word.split(","));
      } else unknown.push(name + "=" + word);
    });
    tell(unknown.length === 0 ? "" : "Not a point of this page: " + unknown.join(", ") + ".");
    return true;
  }
  function tell(message) { byId("told").textContent = message; }
  function copy(words, what) {
    const done = function () { tell(what + " copied."); };
    const byHand = function () {
      const area = document.createElement("textarea");
      area.value = words;
      area.setAttribute("readonly", "");
      area.className = "unseen";
      document.body.appendChild(area);
      const before = document.activeElement;
      area.select();
      let copied = false;
      try { copied = document.execCommand("copy"); } catch (error) { copied = false; }
      area.remove();
      if (before !== null) before.focus();
      if (copied) done();
      else tell("This browser does not let the page copy: " + words);
    };
    if (navigator.clipboard && window.isSecureContext) navigator.clipboard.writeText(words).then(done, byHand);
    else byHand();
  }

  // ---- pictures

  function drawn(parent, name, attributes, words) {
    const one = document.createElementNS(SVG, name);
    Object.keys(attributes).forEach(function (key) { one.setAttribute(key, attributes[key]); });
    if (words !== undefined) one.textContent = words;
    parent.appendChild(one);
    return one;
  }
  const SHAPES = [
    "M-3,0a3,3 0 1,0 6,0a3,3 0 1,0 -6,0", "M-3,-3h6v6h-6z", "M0,-4L3.6,3H-3.6z", "M0,-4L4,0L0,4L-4,0z",
    "M0,4L3.6,-3H-3.6z", "M-3.5,-1h2.5v-2.5h2v2.5h2.5v2h-2.5v2.5h-2v-2.5h-2.5z",
    "M-3,-4L0,-1L3,-4L4,-3L1,0L4,3L3,4L0,1L-3,4L-4,3L-1,0L-4,-3z",
  ];
  function shape(parent, style, x, y, size) {
    drawn(parent, "path", { d: SHAPES[style % 7], transform: "translate(" + x + " " + y + ") scale(" + size + ")", class: "dot" });
  }
  function short(name) {
    if (name.length <= 13) return name;
    const first = name.split(",")[0];
    return (first.length <= 13 ? first : first.slice(0, 12)) + "\u2026";
  }
  function niceTicks(low, high) {
    const ticks = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
      [1, 2, 5].forEach(function (n) {
        const tick = Number((n * Math.pow(10, power)).toPrecision(1));
        if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push(tick);
      });
    }
    return ticks;
  }
  function tickText(tick) { return tick >= 1000 ? tick.toLocaleString("en") : String(tick); }

  // Lines over one axis at the point of the others. A line has points {y, low, high, fits, words}.
  function plot(id, axis, factor, lines, title) {
    const place = byId(id), width = Math.max(280, place.clientWidth), phone = width < 480;
    const height = phone ? 250 : 270, left = 46, right = 12, top = 10, bottom = 26;
    const values = grid.axes[axis].values, at = state.at[axis];
    const shown = lines.filter(function (line) { return line.points.some(function (p) { return p.y > 0; }); });
    const heights = [];
    [true, false].forEach(function (needed) {
      if (heights.length > 0) return;
      shown.forEach(function (line) {
        line.points.forEach(function (p) {
          if (p.y > 0 && (p.fits || !needed)) heights.push(p.low === null ? p.y : p.low, p.high === null ? p.y : p.high);
        });
      });
    });
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", "0 0 " + width + " " + height);
    svg.setAttribute("role", "img");
    svg.setAttribute("class", "moving");
    place.replaceChildren(svg);
    if (heights.length === 0) {
      drawn(svg, "text", { x: left, y: height / 2, class: "tick" }, "Nothing to draw at this point.");
      svg.setAttribute("aria-label", title + ": nothing to draw at this point");
      return;
    }
    let low = Math.min.apply(null, heights) * factor, high = Math.max.apply(null, heights) * factor;
    low *= 0.9;
    high = Math.max(high * 1.3, low * 2);
    const ends = [Math.log(values[0]), Math.log(values[values.length - 1])];
    const xs = values.map(function (one) {
      return left + 6 + (width - left - right - 12) * (Math.log(one) - ends[0]) / Math.max(ends[1] - ends[0], 1e-9);
    });
    function up(y) {
      const share = (Math.log(y * factor) - Math.log(low)) / (Math.log(high) - Math.log(low));
      return top + (height - top - bottom) * (1 - share);
    }
    const clip = drawn(drawn(svg, "defs", {}), "clipPath", { id: id + "-clip" });
    drawn(clip, "rect", { x: left, y: top, width: width - left - right, height: height - top - bottom });
    const hatches = svg.querySelector("defs");
    let ticks = niceTicks(low, high);
    if (ticks.length > 7) ticks = ticks.filter(function (tick) { return String(tick).replace(/[0.]/g, "")[0] === "1"; });
    ticks.forEach(function (tick) {
      const y = up(tick / factor);
      drawn(svg, "line", { x1: left, x2: width - right, y1: y, y2: y, class: "rail" });
      drawn(svg, "text", { x: left - 6, y: y + 4, class: "tick end" }, tickText(tick));
    });
    const named = [];
    [at].concat(values.map(function (_, n) { return n; })).forEach(function (n) {
      const words = grid.axes[axis].ticks[n], room = 12 + 7 * words.length;
      if (named.some(function (other) { return Math.abs(xs[n] - xs[other]) < room; })) return;
      named.push(n);
      drawn(svg, "text", { x: xs[n], y: height - 8, class: "tick middle" }, words);
      drawn(svg, "line", { x1: xs[n], x2: xs[n], y1: height - bottom, y2: height - bottom + 4, class: "rail" });
    });
    const inner = drawn(svg, "g", { "clip-path": "url(#" + id + "-clip)" });
    drawn(svg, "line", { x1: xs[at], x2: xs[at], y1: top, y2: height - bottom, class: "rule" });
    shown.slice().reverse().forEach(function (line) {
      const group = drawn(inner, "g", { class: "line s" + (line.style % 7) });
      const points = line.points.map(function (p, n) { return { n: n, x: xs[n], p: p }; }).filter(function (one) { return one.p.y > 0; });
      const holds = points.filter(function (one) { return one.p.fits; });
      const lacks = points.filter(function (one) {
        return !one.p.fits || (one.n + 1 < line.points.length && !line.points[one.n + 1].fits);
      });
      const path = function (part) {
        return part.map(function (one, k) { return (k ? "L" : "M") + one.x.toFixed(1) + "," + up(one.p.y).toFixed(1); }).join("");
      };
      const ribbon = function (part) {
        const over = part.map(function (one) { return one.x.toFixed(1) + "," + up(one.p.high).toFixed(1); });
        const under = part.slice().reverse().map(function (one) { return one.x.toFixed(1) + "," + up(one.p.low).toFixed(1); });
        return "M" + over.concat(under).join("L") + "Z";
      };
      if (points.length > 0 && points[0].p.low !== null) {
        if (holds.length > 1) drawn(group, "path", { d: ribbon(holds), class: "ribbon" });
        if (lacks.length > 1) {
          const name = id + "-hatch-" + line.style;
          const pattern = drawn(hatches, "pattern", { id: name, width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(" + (45 + 25 * line.style) + ")", class: "line s" + (line.style % 7) });
          drawn(pattern, "line", { x1: 0, x2: 0, y1: 0, y2: 7, class: "stripe" });
          drawn(group, "path", { d: ribbon(lacks), fill: "url(#" + name + ")", class: "hatched" });
          drawn(group, "path", { d: path(lacks), class: "lacking" });
        }
      }
      drawn(group, "path", { d: path(holds), class: "curve" });
      holds.forEach(function (one) { shape(group, line.style, one.x, up(one.p.y), one.n === at ? 1.6 : 0.8); });
    });
    const labels = shown.filter(function (line) { return line.points[at].y > 0 && line.points[at].fits; }).map(function (line) {
      return { line: line, from: up(line.points[at].y), y: up(line.points[at].y), words: line.points[at].words + " " + short(line.name) };
    });
    placeLabels(svg, labels, xs[at], { left: left, right: width - right, top: top, bottom: height - bottom });
    svg.setAttribute("aria-label", title + ": " + (labels.map(function (one) { return one.words; }).join(", ") || "no line fits here"));
    svg.addEventListener("click", function (event) {
      const box = svg.getBoundingClientRect(), x = (event.clientX - box.left) * width / box.width;
      let nearest = 0;
      xs.forEach(function (one, n) { if (Math.abs(one - x) < Math.abs(xs[nearest] - x)) nearest = n; });
      state.at[axis] = nearest;
      changed();
    });
  }
  function placeLabels(svg, labels, x, room) {
    const step = 15, wide = 7.1;
    labels.sort(function (one, other) { return one.from - other.from; });
    const lowest = room.bottom - 4, n = labels.length;
    labels.forEach(function (one, k) {
      one.y = Math.max(one.from, k === 0 ? room.top + 8 : labels[k - 1].y + step);
    });
    for (let k = n - 1; k >= 0; k -= 1) {
      labels[k].y = Math.min(labels[k].y, k === n - 1 ? lowest : labels[k + 1].y - step);
    }
    const widest = Math.max.apply(null, labels.map(function (one) { return wide * one.words.length; }).concat([0]));
    const leftward = x + 22 + widest > room.right;
    const side = leftward ? -1 : 1, group = drawn(svg, "g", { class: "values" });
    labels.forEach(function (one) {
      const mine = drawn(group, "g", { class: "line s" + (one.line.style % 7) });
      drawn(mine, "path", { d: "M" + (x + 4 * side) + "," + one.from.toFixed(1) + "L" + (x + 13 * side) + "," + one.y.toFixed(1), class: "leader" });
      drawn(mine, "text", { x: x + 16 * side, y: one.y + 4, class: "value" + (leftward ? " end" : "") }, one.words);
    });
  }
  function lines(keys, axis) {
    return grid.designs.filter(function (one) { return inSet(one) && !state.hidden.has(one.line); }).map(function (design) {
      return {
        style: design.style, name: text(design, "attention", state.at),
        points: grid.axes[axis].values.map(function (_, n) {
          const at = state.at.slice();
          at[axis] = n;
          return {
            y: value(design, keys.y, at), words: text(design, keys.y, at) + keys.unit,
            low: keys.low === undefined ? null : value(design, keys.low, at),
            high: keys.high === undefined ? null : value(design, keys.high, at),
            fits: keys.low === undefined || value(design, "batch_fits", at) !== false,
          };
        }),
      };
    });
  }
  function draw() {
    if (byId("plot-users") !== null) {
      plot("plot-users", CONTEXT, 1, lines({ y: "total_sequences", unit: "" }, CONTEXT), "Users that fit");
    }
    if (byId("plot-steps") === null) return;
    const axis = state.along === "batch" ? BATCH : CONTEXT;
    plot("plot-steps", axis, 1e3, lines({ y: "step_s", low: "low_s", high: "high_s", unit: " ms" }, axis), "Decode step");
    byId("steps-note").textContent = "; ribbons are bands, hatched where the batch does not fit";
    byId("steps-along").textContent = axis === BATCH
      ? "against the batch, at " + grid.axes[CONTEXT].texts[state.at[CONTEXT]]
      : "against the context, at batch " + grid.axes[BATCH].texts[state.at[BATCH]];
  }

  // ---- all that follows the state

  function show() {
    const at = state.at, own = grid.designs[0], other = compared();
    sliders.forEach(function (slider) {
      const axis = Number(slider.dataset.axis), words = grid.axes[axis].texts[at[axis]];
      const held = axis === RANK && state.equal;
      slider.value = String(at[axis]);
      slider.disabled = held;
      slider.setAttribute("aria-valuetext", held ? "set by the cache" : words);
      byId("shown-" + grid.axes[axis].key).textContent = held ? "set by the cache" : words;
    });
    all("input[name=kv_dtype]").forEach(function (one) { one.checked = Number(one.value) === at[FORMAT]; });
    all("input[name=along]").forEach(function (one) { one.checked = one.value === state.along; });
    if (byId("equal") !== null) {
      byId("equal").checked = state.equal;
      byId("own-cache").textContent = text(own, "bytes_per_token_per_gpu", at);
    }
    all("input[data-line]").forEach(function (box) {
      const design = grid.designs.find(function (one) { return one.line === box.dataset.line && inSet(one); });
      box.checked = !state.hidden.has(box.dataset.line);
      box.parentElement.hidden = design === undefined;
      if (design !== undefined) box.parentElement.querySelector("span").textContent = text(design, "attention", at);
    });
    byId("verdict-users").textContent = usersSentence(own, other, at);
    byId("verdict-time").textContent = timeSentence(own, other, at);
    byId("command").replaceChildren();
    command().split(" ").forEach(function (word, n) {  // a word is not broken after a hyphen
      const span = document.createElement("span");
      span.textContent = word;
      byId("command").append(n > 0 ? " " : "", span);
    });
    grid.designs.forEach(function (design, row) {
      byId("design-" + row).hidden = !inSet(design);
      named(byId("name-" + row), text(design, "attention", at));
    });
    all("li[data-of]").forEach(function (one) { one.hidden = !inSet(grid.designs[Number(one.dataset.of)]); });
    const used = new Set();
    grid.designs.forEach(function (design) {
      if (inSet(design)) (value(design, "foundations", at) || []).forEach(function (n) { used.add(n); });
    });
    ofTimes.forEach(function (n) { byId("chip-" + n).hidden = !used.has(n); });
    cells.forEach(function (cell) {
      const design = grid.designs[Number(cell.dataset.design)], key = cell.dataset.key;
      const mark = cell.querySelector("a");
      if (design.measures[key].column === null) return;
      const fits = cell.dataset.ifFits === undefined || value(design, "batch_fits", at) !== false;
      cell.querySelector(".v").textContent = fits ? text(design, key, at) : "-";
      cell.dataset.value = fits ? String(value(design, key, at)) : "";
      if (mark !== null) {
        const chip = value(design, "time_basis", at);
        mark.hidden = !fits || chip === null;
        if (chip !== null) {
          mark.textContent = text(design, "time_basis", at);
          mark.setAttribute("href", "#chip-" + chip);
          mark.setAttribute("aria-label", byId("chip-" + chip).querySelector("summary").textContent);
        }
      }
    });
    draw();
  }
  function named(place, name) {
    place.replaceChildren();
    name.split(",").forEach(function (part, n) {
      if (n > 0) place.append(",", document.createElement("wbr"));
      place.append(part);
    });
  }
  function changed() { tell(""); write(); show(); }

  const sliders = all("input[data-axis]"), cells = all("td[data-design]");
  const ofTimes = new Set();  // chips of some point's times; shown where a design rests on them
  grid.designs.forEach(function (design) {
    const column = design.measures.foundations.column;
    if (column !== null) grid.columns[column].values.flat().forEach(function (n) { ofTimes.add(n); });
  });
  sliders.forEach(function (slider) {
    slider.addEventListener("input", function () {
      state.at[Number(slider.dataset.axis)] = Number(slider.value);
      changed();
    });
  });
  all("input[name=kv_dtype]").forEach(function (one) {
    one.addEventListener("change", function () { state.at[FORMAT] = Number(one.value); changed(); });
  });
  all("input[name=along]").forEach(function (one) {
    one.addEventListener("change", function () { state.along = one.value; changed(); });
  });
  all("input[data-line]").forEach(function (box) {
    box.addEventListener("change", function () {
      if (box.checked) state.hidden.delete(box.dataset.line); else state.hidden.add(box.dataset.line);
      changed();
    });
  });
  if (byId("equal") !== null) {
    byId("equal").addEventListener("change", function () { state.equal = byId("equal").checked; changed(); });
  }
  byId("copy-command").addEventListener("click", function () { copy(command(), "Command"); });
  byId("copy-link").addEventListener("click", function () {
    write();
    copy(location.href, "Link");
  });
  byId("reset").addEventListener("click", function () {
    state.at = start.slice();
    state.equal = false;
    state.along = "context";
    state.hidden = new Set(covered);
    changed();
  });
  all("a.mark").forEach(function (mark) {
    mark.addEventListener("click", function (event) {
      const chip = byId(mark.getAttribute("href").slice(1));
      event.preventDefault();
      chip.open = true;
      chip.scrollIntoView({ block: "center" });
      chip.querySelector("summary").focus();
    });
  });
  window.addEventListener("hashchange", function () { if (read()) show(); });
  let width = window.innerWidth;
  window.addEventListener("resize", function () {
    if (window.innerWidth !== width) { width = window.innerWidth; draw(); }
  });
  all(".scripted").forEach(function (one) { one.hidden = false; });
  document.querySelector(".bench").classList.add("moves");
  read();
  show();
})();
