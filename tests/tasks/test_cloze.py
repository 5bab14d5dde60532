"""Masked words of texts."""

import dataclasses
import functools

import pytest
from evaluating import evaluated
from flax import nnx
from tiny_lm import lm

from t2x.base.errors import UserError
from t2x.data import Bytes
from t2x.data.sources.base import Source
from t2x.models import LMHead
from t2x.tasks import Cloze, MaskedLM

TOKENIZER = Bytes().train([])
PATTERN = r'a (?P<digit>\w+) moves (?P<to>\w+)'


@dataclasses.dataclass(frozen=True)
class Texts(Source):
  texts: tuple[str, ...] = ('a 3 moves e > vw', 'a 3 moves 3 > v', 'a 4 moves w', 'a 5 moves 3')

  def splits(self):
    return ('train', 'validation')

  def load(self, split):
    return [{'text': text} for text in self.texts]

  def fingerprint(self):
    return 'texts'


def scores(texts=Texts(), **settings):
  """Of a model that predicts '3' for every mask."""
  model = lm(head=functools.partial(LMHead, use_bias=True))(rngs=nnx.Rngs(0))
  bias = model.head.out.bias
  bias[...] = bias[...].at[TOKENIZER.encode('3')[0]].set(100.0)
  task = MaskedLM(source=texts, tokenizer=Bytes(), length=24).bound(TOKENIZER)
  return Cloze(pattern=PATTERN, **settings)(evaluated(task, model, [], 2))


def test_each_word_is_right_if_the_likeliest_token_is_it():
  result = scores(batch_size=3)
  assert dict(result.metrics) == {'examples': 4, 'digit': 0.5, 'to': 0.5, 'all': 0.25}
  assert result.examples['all'].tolist() == [0, 1, 0, 0]
  assert result.samples[0] == {'prompt': 'a <mask> moves <mask> > vw', 'output': 'a 3 moves 3 > vw'}
  assert scores(num_examples=2).metrics['examples'] == 2


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    ('a 34 moves w', "'34' is 2 tokens, but Cloze masks words of one token"),
    ('the 3 moves', "does not match the text 'the 3 moves'"),
  ],
)
def test_texts_without_one_token_per_word_are_refused(text, message):
  with pytest.raises(UserError, match=message):
    scores(Texts((text,)))


@pytest.mark.parametrize(
  ('pattern', 'message'),
  [('a (', 'is no regular expression'), (r'a (\w)', 'has no named group')],
)
def test_patterns_without_names_are_refused(pattern, message):
  with pytest.raises(UserError, match=message):
    Cloze(pattern=pattern)
