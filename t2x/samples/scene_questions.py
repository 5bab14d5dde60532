"""Questions about drawn scenes, whose answers need the picture."""

import dataclasses

from t2x.data.prepared_folders import fingerprint
from t2x.samples.drawn_scenes import COLOURS, SHAPES, DrawnScenes, Scene, draw, scenes

__all__ = ['SceneQuestions']

PLACES = {'left of': ('on the left', 'on the right'), 'above': ('at the top', 'at the bottom')}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SceneQuestions(DrawnScenes):
  """Drawn scenes of `DrawnScenes` with `image` uint8 [size, size, 3], a `question` and its `answer`,
  one of twelve words.

  Questions have one of five forms with equal probabilities: 'what colour is on the left', 'what shape is at the top',
  'what colour is the circle', 'what shape is red', and 'is there a red circle', whose answer is 'yes' for half of them;
  'no' is about an object that differs in colour or in shape from one of the scene.
  """

  def example(self, rng, split):
    own = scenes(split)
    scene = own[rng.integers(len(own))]
    image = draw(scene, self.size, rng)
    question, answer = self._question(scene, rng)
    return {'image': image, 'question': question, 'answer': answer}

  def _question(self, scene: Scene, rng):
    """Returns a question about a scene and its answer; a form whose answer would not be unique is drawn again."""
    while True:
      form, number = rng.integers(5), int(rng.integers(2))
      colour, shape = scene.colours[number], scene.shapes[number]
      place = PLACES[scene.relation][number]
      if form == 0:
        return f'what colour is {place}', colour
      if form == 1:
        return f'what shape is {place}', shape
      if form == 2 and scene.shapes[0] != scene.shapes[1]:
        return f'what colour is the {shape}', colour
      if form == 3 and scene.colours[0] != scene.colours[1]:
        return f'what shape is {colour}', shape
      if form == 4:
        return self._exists(scene, colour, shape, rng)

  def _exists(self, scene, colour, shape, rng):
    if rng.random() < 0.5:
      return f'is there a {colour} {shape}', 'yes'
    objects = set(zip(scene.colours, scene.shapes, strict=True))
    others = [(c, shape) for c in COLOURS if (c, shape) not in objects]
    others += [(colour, s) for s in SHAPES if (colour, s) not in objects]
    colour, shape = others[rng.integers(len(others))]
    return f'is there a {colour} {shape}', 'no'

  def fingerprint(self) -> str:
    """Identifies the settings and the lists that questions are made of."""
    return fingerprint(super().fingerprint(), PLACES)
