"""Labels without the words that tell no case apart."""

from __future__ import annotations

from hpcbench.views.labels import (
    distinct_names,
    own_words,
    short_labels,
    shortened,
    vary,
    without_shared,
)

LABELS = ("all_reduce gloo cpu fp32 8B n=2", "all_reduce gloo cpu fp32 8B n=2 isolated",
          "all_reduce mpi cpu fp32 8B n=2", "transformer gloo cpu fp32 dp=2 n=2")


def test_words_that_all_of_a_title_have_are_left_out() -> None:
    assert short_labels(LABELS) == {
        LABELS[0]: "all_reduce gloo", LABELS[1]: "all_reduce gloo isolated",
        LABELS[2]: "all_reduce mpi", LABELS[3]: "transformer"}
    assert short_labels([]) == {} and short_labels(["barrier"]) == {"barrier": "barrier"}


def test_a_size_is_left_out_only_where_all_have_it() -> None:
    assert [*short_labels(["sum gloo 8B", "sum gloo 9B", "sum mpi 8B"]).values()] == [
        "sum gloo 8B", "sum gloo 9B", "sum mpi 8B"]


def test_a_label_that_begins_as_another_one_is_replaced_as_a_whole() -> None:
    text = f"{LABELS[1]} and {LABELS[0]} beside {LABELS[3]}"
    assert shortened(text, short_labels(LABELS)) == (
        "all_reduce gloo isolated and all_reduce gloo beside transformer")


def test_equal_titles_get_the_words_that_distinguish_them() -> None:
    assert distinct_names([("torch", ("a=1", "gloo")), ("ring", ("a=1", "gloo")),
                       ("ring", ("a=2", "gloo"))]) == ["torch", "ring a=1", "ring a=2"]
    assert distinct_names([]) == []


def test_what_all_labels_have_is_stated_once() -> None:
    assert without_shared(["mlp torch fp32", "mlp ring fp32"]) == ("mlp fp32", ["torch", "ring"])
    assert without_shared(["mlp fp32", "mlp ring fp32"]) == ("mlp fp32", ["mlp", "ring"])
    assert without_shared(["mlp torch"]) == ("", ["mlp torch"])
    assert without_shared([]) == ("", []) and without_shared([""]) == ("", [""])
    assert without_shared(["x 4 4", "x 4"]) == ("", ["x 4 4", "x 4"])


def test_what_rows_share_stands_in_the_order_of_the_first_and_what_each_has_beside() -> None:
    assert vary(["ab", "bc", "cb"]) == (["b"], [["a"], ["c"], ["c"]])
    assert vary([["b", "a"], ["a", "b"]]) == (["b", "a"], [[], []]) and vary([]) == ([], [])
    rows = map(enumerate, (("x", 1), ("x", 2), ("x", 1)))
    assert vary(rows) == ([(0, "x")], [[(1, 1)], [(1, 2)], [(1, 1)]])
    assert own_words(["ring a=1 b", "tree a=2 b", ""]) == ["ring a=1 b", "tree a=2 b", ""]
    assert own_words(["ring a=1 b", "tree a=2 b"]) == ["ring a=1", "tree a=2"]
