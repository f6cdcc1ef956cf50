"use strict";
(function () {
  const holder = document.getElementById("grid-data");
  if (holder === null) return;
  const grid = JSON.parse(holder.textContent);
  const sliders = Array.from(document.querySelectorAll("input[data-axis]"));
  const cells = Array.from(document.querySelectorAll("td[data-design]"));
  const names = Array.from(document.querySelectorAll("[data-name]"));

  function show() {
    const at = sliders.map(function (slider) { return Number(slider.value); });
    sliders.forEach(function (slider, index) {
      const text = grid.axes[index].texts[at[index]];
      slider.setAttribute("aria-valuetext", text);
      document.getElementById("shown-" + grid.axes[index].key).textContent = text;
    });
    names.forEach(function (place) {
      const known = grid.designs[Number(place.dataset.name)].names;
      place.textContent = known.length > 1 ? known[at[0]] : known[0];
    });
    cells.forEach(function (cell) {
      const measure = grid.designs[Number(cell.dataset.design)].measures[Number(cell.dataset.measure)];
      if (measure.column === null) return;
      const column = grid.columns[measure.column];
      const place = measure.strides.reduce(function (sum, stride, axis) {
        return sum + stride * at[axis];
      }, 0);
      cell.textContent = column.texts[place];
      cell.dataset.value = String(column.values[place]);
    });
  }

  sliders.forEach(function (slider) {
    slider.disabled = false;
    slider.addEventListener("input", show);
  });
  show();
})();
