"""Public trace formats, by small samples made up here; what is none of them is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lrkv_plan.errors import SpecError
from lrkv_plan.specs import traces
from lrkv_plan.specs.traces import read_trace
from tests.drawing import drawn

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
AZURE_2023 = AZURE + (
    "2023-11-16 18:17:03.9799600,4808,10\n"
    "2023-11-16 18:17:04.0319600,0,8\n"
    "2023-11-16 18:17:05,110,27"
)
AZURE_2024 = AZURE + (
    "2024-05-10 00:00:00+00:00,4808,10\n"
    "2024-05-10 00:00:00.009930+00:00,0,8\n"
    "2024-05-10 00:00:01.5+00:00,110,27\n"
)
BURST_2 = BURST + (
    "5,ChatGPT,4808,10,4818,Conversation log\n"
    '45.5,"GPT-4",0,8,8,API log\n'
    "118,GPT-4,110,27,137,API log\n"
)
BURST_8 = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "19440110.0,1722-ac82,43,GPT-4,4808,10,4818,Conversation log\n"
    "19440161.0,,2,ChatGPT,0,8,8,API log\n"
    "19440192.0,,2,ChatGPT,110,27,137,API log\n"
)
MOONCAKE = (
    '{"timestamp": 0, "input_length": 4808, "output_length": 10, "hash_ids": [0, 1, 2]}\n'
    '{"timestamp": 0, "input_length": 0, "output_length": 8, "hash_ids": []}\n'
    '{"output_length": 27,"input_length":110,"timestamp":3000.5}\n'
)


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace"
    path.write_text(text, newline="")
    return path


@pytest.mark.parametrize(
    ("text", "read_as"),
    [
        (AZURE_2023, "read as Azure LLM inference"),
        (AZURE_2023.replace("\n", "\r\n"), "read as Azure LLM inference"),
        (AZURE_2024, "read as Azure LLM inference"),
        (BURST_2, "read as BurstGPT"),
        (BURST_8, "read as BurstGPT"),
        (MOONCAKE, "read as Mooncake; prefixes that requests share (hash_ids) are counted for eac"),
    ],
)
def test_each_public_format_is_recognised(tmp_path: Path, text: str, read_as: str) -> None:
    population = read_trace(write(tmp_path, text))
    assert population.first_prompt_tokens.tolist() == [4808, 0, 110]
    assert population.first_output_tokens.tolist() == [10, 8, 27]
    assert population.lengths.first.tolist() == [4818, 8, 137]
    assert len(population.remarks) == 1
    assert population.remarks[0].startswith(read_as)


@pytest.mark.parametrize(
    "rows",
    [
        "2024-05-10 00:00:01+00:00,1,0\n2024-05-10 00:00:02+00:00,2,0\n"
        "2024-05-10 00:00:01.000+00:00,3,0\n2024-05-09 23:59:59.9999999+00:00,4,0\n",
        "2024-05-10 00:00:01Z,1,0\n2024-05-10T00:00:02,2,0\n"
        "2024-05-10 00:00:01.000+00:00,3,0\n2024-05-09 23:59:59,4,0\n",
    ],
)
def test_rows_out_of_order_are_sorted_stably_and_said_so(tmp_path: Path, rows: str) -> None:
    population = read_trace(write(tmp_path, AZURE + rows))
    assert population.lengths.first.tolist() == [4, 1, 3, 2]
    assert "timestamps were out of order; rows were sorted by arrival" in population.remarks


def test_seconds_sort_as_numbers(tmp_path: Path) -> None:
    rows = "100,m,1,1,2,x\n20.5,m,2,1,3,x\n3,m,3,1,4,x\n"
    assert read_trace(write(tmp_path, BURST + rows)).first_prompt_tokens.tolist() == [3, 2, 1]


def test_failures_keep_their_prompts_and_empty_rows_go(tmp_path: Path) -> None:
    rows = "1,GPT-4,7,0,7,x\n2,GPT-4,0,0,0,x\n3,GPT-4,0,5,5,x\n"
    population = read_trace(write(tmp_path, BURST + rows))
    assert population.lengths.first.tolist() == [7, 5]
    assert population.remarks == (
        "read as BurstGPT",
        "dropped 1 of 3 rows that hold no token",
        "failed requests (0 response tokens), kept with their prompts: 1",
    )


GOOD_LINE = '{"timestamp": 1, "input_length": 2, "output_length": 3}\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        (AZURE, "holds only a header"),
        (AZURE + "2024-05-10 00:00:00,0,0\n", "all 1 sequences hold 0 tokens"),
        ("a,b\n1,2\n", "line 1: header 'a,b': not a known trace; known: Azure.*BurstGPT.*Mooncake"),
        ("5\n7\n", "line 1: header '5': not a known trace"),
        (
            "TIMESTAMP,ContextToken,GeneratedTokens\n",
            "not a known trace; did you mean 'ContextTokens'",
        ),
        ("TIMESTAMP,ContextTokens\n", "nearest is Azure LLM inference, but this lacks Generated"),
        (
            "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n",
            "nearest is Azure LLM inference, but this also has NumImages",
        ),
        (AZURE + "2024-05-10 00:00:00,1\n", "line 2: .*has 2 values: the header names 3"),
        (AZURE + "2024-05-10 00:00:00,2k,1\n", "line 2: ContextTokens '2k': must be a whole"),
        (AZURE + "2024-05-10 00:00:00,5,-1\n", "line 2: GeneratedTokens '-1'"),
        (AZURE + "2024-05-10 00:00:00,1e9,1\n", "line 2: ContextTokens '1e9'"),
        (AZURE + "2024-05-10 00:00:00,1000000000,1\n", "line 2: 1000000001: prompt and output tog"),
        (AZURE + "2024-02-31 00:00:00,5,1\n", "line 2: TIMESTAMP '2024-02-31 00:00:00': must be a"),
        (AZURE + "2024-05-10 00:00:00+05:30,5,1\n", r"line 2: TIMESTAMP .*must be a UTC time"),
        (AZURE + "NaT,5,1\n", "line 2: TIMESTAMP 'NaT'"),
        (AZURE + "now,5,1\n", "line 2: TIMESTAMP 'now'"),
        (AZURE + "0,5,1\n", "line 2: TIMESTAMP '0'"),
        (BURST + "nan,m,5,1,6,x\n", "line 2: Timestamp 'nan': must be a number of seconds"),
        (BURST + "1,m,5.0,1,6,x\n", "line 2: Request tokens '5.0'"),
        (BURST + "1,m,5,NaN,6,x\n", "line 2: Response tokens 'NaN'"),
        (
            GOOD_LINE + '{"timestamp": 1, "input_len',
            r"line 2: .*Invalid JSON: EOF while parsing a string at column 27;",
        ),
        (
            GOOD_LINE + "\n" + '{"timestamp": 1, "input_length": 2}\n',
            "line 3: .*output_length: Fie",
        ),
        (GOOD_LINE + GOOD_LINE.replace("2", "2.5"), "line 2: 2.5: input_length: .*integer"),
        (GOOD_LINE + GOOD_LINE.replace("2", "-2"), "line 2: -2: input_length: .*greater than"),
        (GOOD_LINE + GOOD_LINE.replace("2", '"2k"'), "line 2: '2k': input_length: .*valid integer"),
        (GOOD_LINE + GOOD_LINE.replace("2", "true"), "line 2: True: input_length"),
        (GOOD_LINE + GOOD_LINE.replace("2", "NaN"), "line 2: nan: input_length"),
        (GOOD_LINE + GOOD_LINE.replace("2", "9" * 5000), "line 2: .*input_length"),
        (GOOD_LINE + GOOD_LINE.replace("1", "NaN"), "line 2: nan: timestamp: .*finite"),
        (
            GOOD_LINE + GOOD_LINE.replace("}", ', "input_length": 7}'),
            "line 2: key 'input_length': a",
        ),
        (
            GOOD_LINE.replace("}", ', "x": ' + "9" * 5000 + ', "timestamp": 7}'),
            "Invalid JSON: number out of range",
        ),
        (GOOD_LINE.strip() + GOOD_LINE, "line 1: .*trailing characters"),
        ('{"timestamp": 1,\n"input_length": 2}\n', "line 1: .*Invalid JSON"),
        ('{"timestamp": ' + "[" * 10_000, "line 1: .*(Invalid JSON|recursion)"),
        (GOOD_LINE + "[1]\n", "line 2: .*object"),
        ("{}\n", "line 1: '{}': timestamp: Field required"),
    ],
)
def test_what_is_no_trace_is_one_line_with_its_place(
    tmp_path: Path, text: str, message: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(SpecError, match=message) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_key_named_inside_another_value_is_no_duplicate(tmp_path: Path) -> None:
    line = GOOD_LINE.replace("}", ', "note": {"input_length": "x"}}')
    assert read_trace(write(tmp_path, line)).lengths.first.tolist() == [5]


REQUESTS = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 10**8), st.integers(1, 10**8)), min_size=1
)


@settings(max_examples=drawn(50))
@given(REQUESTS, st.sampled_from(["burst", "mooncake"]))
def test_any_requests_come_back_in_order_of_arrival(
    tmp_path_factory: pytest.TempPathFactory, requests: list[tuple[int, int, int]], kind: str
) -> None:
    if kind == "burst":
        text = BURST + "".join(f"{t},m,{p},{o},{p + o},x\n" for t, p, o in requests)
    else:
        keys = ("timestamp", "input_length", "output_length")
        text = "\n".join(json.dumps(dict(zip(keys, r, strict=True))) for r in requests)
    population = read_trace(write(tmp_path_factory.mktemp("trace"), text))
    in_order = sorted(requests, key=lambda request: request[0])
    assert population.first_prompt_tokens.tolist() == [p for _, p, _ in in_order]
    assert population.lengths.first.tolist() == [p + o for _, p, o in in_order]


@settings(max_examples=drawn(200))
@given(st.sampled_from([AZURE_2024, BURST_2, MOONCAKE]), st.data())
def test_a_damaged_trace_is_read_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, text: str, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(text) - 1))
    damage = data.draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=3))
    path = write(tmp_path_factory.mktemp("damaged"), text[:at] + damage + text[at + 1 :])

    def outcome() -> str:
        try:
            found = read_trace(path)
        except SpecError as error:
            return str(error)
        return f"{found.n_sequences} sequences {found.first_prompt_tokens} {found.remarks}"

    what = outcome()
    assert re.fullmatch(r"[1-9]\d* sequences.*|.*: .*", what)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(traces, "_mooncake_at_once", lambda _: None)
        assert outcome() == what
