"""Problems by their causes: what is one line, what it says, and that its numbers are true."""

import tracemalloc

import pytest

from csf_tool.checkpoint.causes import CAUSES_OF_A_KIND, first_of, lines_of, sentences_of
from csf_tool.checkpoint.problems import Problem, Severity
from csf_tool.codes import Code


def of(text: str, file: str = "a", tensor: str = "", code: Code = Code.TRUNCATED, summary: str = "") -> Problem:
    return Problem(text, code, file, tensor, summary=summary)


def texts(*problems: Problem) -> list[str]:
    return [line.text for line in lines_of(problems)]


def test_one_problem_is_said_as_it_is() -> None:
    assert texts(of("is 5 bytes", "a", "t")) == ["a: t: is 5 bytes"]


def test_tensors_of_a_file_are_named() -> None:
    found = [of(f"ends at byte {i}", "a", f"t.{i}") for i in range(4)]
    assert texts(*found) == ["a: t.0: ends at byte 0; and 3 more like it: t.1, t.2, t.3"]
    many = [of(f"ends at byte {i}", "a", f"t.{i}") for i in range(12)]
    assert texts(*many) == ["a: t.0: ends at byte 0; and 11 more like it: t.1, t.2, t.3 and 8 more"]
    assert texts(*many[:-1])[0].endswith("; and 10 more like it: t.1, t.2, t.3, t.4, t.5, t.6, t.7, t.8, t.9, t.10")


def test_files_are_named_and_counted_where_they_are_several() -> None:
    one_each = [of("empty", f"{i}.x") for i in range(12)]
    assert texts(*one_each) == ["0.x: empty; and 11 more like it: in 1.x, 2.x, 3.x and 8 more"]
    assert texts(*one_each[:5]) == ["0.x: empty; and 4 more like it: in 1.x, 2.x, 3.x, 4.x"]
    many_each = [of("empty", f"{i}.x", f"t.{j}") for i in range(3) for j in range(1000)]
    assert texts(*many_each) == ["0.x: t.0: empty; and 2,999 more like it, in 3 files: 0.x, 1.x, 2.x"]
    assert texts(one_each[0], one_each[1]) == ["0.x: empty; and 1 more like it, in 1.x"]


def test_what_differs_is_named_where_places_do_not() -> None:
    found = [of(f"lists shard 'x {i}' twice", "m") for i in range(3)]
    assert texts(*found) == ["m: lists shard 'x 0' twice; and 2 more like it: 'x 1', 'x 2'"]
    assert texts(*[of("is damaged", "m")] * 3) == ["m: is damaged; and 2 more like it"]
    assert texts(of("x", ""), of("x", ""), of("x", "", "t")) == ["x; and 2 more like it: t and 1 more"]
    assert texts(of("x"), of("x", "")) == ["a: x; and 1 more like it"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("has 5 bytes", "has 17,000 bytes"),
        ("is in model-00001-of-00002.safetensors", "is in model-00001-of-00002 (1).safetensors"),
        ("as model.layers.0.mlp.experts.7.up_proj has", "as lm.head has"),
        ("says 'it\\'s'", 'says "x y: z"'),
        ("is [4, 3, 2]", "is []"),
        ("row 2: base 241 is above 240", "row 3: base 255 is above 240 (and 12 more)"),
        ("sha256 is 0a1b", "sha256 is 3c4d"),
        ("places it in a/b.x", "places it in d/e"),
    ],
)
def test_names_and_numbers_make_no_other_cause(one: str, other: str) -> None:
    assert len(texts(of(one), of(other))) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("dtype is BF16, but the reference has F32", "dtype is F32, but the reference has BF16"),
        ("stored as NVFP4", "stored as MXFP4"),
        ("fixed_bytes 5", "exception_bytes 5"),
        ("is missing", "is damaged"),
    ],
)
def test_other_words_are_another_cause(one: str, other: str) -> None:
    assert len(texts(of(one), of(other))) == 2


def test_other_kinds_and_severities_are_other_causes_and_errors_come_first() -> None:
    odd = Problem("x", Code.NO_INDEX, "a", severity=Severity.WARNING)
    found = lines_of([odd, of("x"), of("x", code=Code.DATA_HOLE), odd])
    assert [(line.severity, line.text, line.problems) for line in found] == [
        (Severity.ERROR, "a: x", 1),
        (Severity.ERROR, "a: x", 1),
        (Severity.WARNING, "a: x; and 1 more like it", 2),
    ]


def test_a_summary_stands_for_the_problems_that_share_it() -> None:
    def pair(file: str, number: int) -> list[Problem]:
        return [of("stands", file, f"t.{i}", summary=f"all {number} tensors stand") for i in range(number)]

    assert texts(*pair("b.x", 62)) == ["b.x: all 62 tensors stand"]
    [line] = lines_of([*pair("b.x", 62), *pair("c.x", 5), *pair("b.x", 62)])
    assert (line.text, line.problems) == ("b.x: all 62 tensors stand; and 1 more like it, in c.x", 129)


def test_no_kind_has_more_lines_than_anybody_reads() -> None:
    words = ["".join(chr(97 + int(digit)) for digit in str(i)) for i in range(1000)]
    *told, rest = lines_of([of(word) for word in words])
    assert len(told) == CAUSES_OF_A_KIND
    assert (rest.text, rest.problems) == ("and 990 more of this kind", 990)


def test_the_first_in_one_line_counts_the_others() -> None:
    one, other = of("x 1", tensor="t"), of("y")
    assert first_of([one]) == "a: t: x 1"
    assert first_of([one, one]) == "a: t: x 1; and 1 more like it"
    assert first_of([one, other]) == "a: t: x 1 (and 1 more problem of other causes; csf-tool verify lists them)"
    assert "(and 1,000 more problems of other causes;" in first_of([one, *[other] * 1000])


def test_texts_without_a_place_are_grouped_as_well() -> None:
    assert sentences_of(["a.x and A.x: alike", "b.x and B.x: alike", "other\x1b"]) == [
        "a.x and A.x: alike; and 1 more like it: b.x",
        "other\\x1b",
    ]


@pytest.mark.slow
def test_grouping_takes_no_memory_for_each_problem() -> None:
    found = (of(f"differs first at row {i}", f"{i % 40}.x", f"layers.{i}.weight") for i in range(200_000))
    tracemalloc.start()
    lines = lines_of(found)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [line.problems for line in lines] == [200_000]
    assert peak < 4 << 20


@pytest.mark.parametrize("text", ["'", '"\\', "'\\", "[", "a", ".", "a.", "# (#)", " (#"])
def test_no_text_takes_long(text: str) -> None:
    """Minutes, if each character were looked at as often as there are characters."""
    assert len(lines_of([of(text * 100_000)])) == 1
