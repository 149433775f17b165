"""`weft compile`: takes a step of every recipe's model, and says what it does."""

from __future__ import annotations

from weft.recipes.compile_ahead import compile_all


def test_compiles_for_every_recipe_and_then_finds_all_of_it(weft):
    told = []
    compile_all(lambda what, number, of, function: told.append((what, number, of)))
    recipes = {number: what for what, number, _ in told}
    assert list(recipes) == list(range(told[0][2]))
    words = " ".join(recipes.values())
    for recipe in ("molecules", "crystals", "nodes", "programs", "links", "sparse"):
        assert recipe in words
    assert "Everything was compiled already" in weft("compile").out
