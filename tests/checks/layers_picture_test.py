#!/usr/bin/env python3
"""layers_picture.py finds a layer that lies on others than it uses, one without a place, and one that is gone."""
import unittest

from layers_picture import PLACES, problems_of, used_directly

# c uses b and a, and b uses a: therefore c is drawn on b only.
USES = used_directly({"rpc": [], "a": [], "b": ["a"], "c": ["a", "b"]}, {"a", "b", "c"})
RIGHT = {"a": (0, 100, 0), "b": (0, 50, 1), "c": (0, 50, 2)}


class LayersPicture(unittest.TestCase):
    def check(self, problem, **places):
        found = list(problems_of({**RIGHT, **places}, USES))
        self.assertEqual(len(found), 1 if problem else 0, found)
        self.assertIn(problem, "".join(found))

    def test_layers_in_their_places(self):
        self.check("")

    def test_a_layer_on_nothing(self):
        self.check("c lies on nothing in the picture of the layers, but uses b", c=(50, 100, 2))

    def test_a_layer_on_one_that_it_does_not_use(self):
        self.check("c lies on a in the picture of the layers, but uses b", c=(50, 100, 1))

    def test_a_layer_without_sources(self):
        self.check("d has no sources", d=(50, 100, 2))

    def test_a_layer_without_a_place(self):
        self.assertIn("a has no place", next(problems_of({}, USES)))

    def test_the_layers_of_this_tree_have_places(self):
        self.assertEqual(used_directly().keys(), PLACES.keys())


if __name__ == "__main__":
    unittest.main()
