"""Diverse beam search against the search step of fairseq, with a table as model."""

import numpy as np
import pytest
from history_model import history_model, log_probs_after

from t2x.decode import AverageLength, DiverseBeam, generate
from tests.parity import archives

torch = pytest.importorskip('torch', reason="the extra 'references' is not installed")
pytestmark = pytest.mark.nightly

VOCAB, LIMIT, PAD = 17, 6, 16
PROMPTS = np.array([[2, 3], [5, 5], [7, 2]])


@pytest.fixture(scope='module')
def search():
  return archives.module('fairseq', '0.12.2', 'fairseq.search')


class Dictionary(list):
  def pad(self):
    return PAD

  def unk(self):
    return PAD

  def eos(self):
    return PAD


def hypotheses(step, model, width):
  """Returns tokens [batch, width, LIMIT] and scores [batch, width] of a search whose beams end at the limit.

  fairseq's generator continues with the first `width` candidates of its step if no token ends a beam.
  """
  tokens = np.zeros((len(PROMPTS), width, 0), int)
  scores = torch.zeros(len(PROMPTS), width, 0)
  for n in range(LIMIT):
    rows = [
      [log_probs_after(model, [*prompt, *beam]) for beam in beams]
      for prompt, beams in zip(PROMPTS, tokens, strict=True)
    ]
    found = step(n, torch.tensor(np.array(rows)).float(), scores)
    totals, chosen, parents = (values[:, :width] for values in found)
    parents = parents.numpy()[..., None]
    tokens = np.concatenate([np.take_along_axis(tokens, parents, 1), chosen.numpy()[..., None]], 2)
    before = np.take_along_axis(scores.numpy(), parents, 1)
    scores = torch.cat([torch.tensor(before), totals[..., None]], 2)
  return tokens, scores[:, :, -1].numpy()


@pytest.mark.parametrize('strength', [0.3, 1.0, 4.0])
@pytest.mark.parametrize(('width', 'num_groups'), [(6, 2), (6, 3), (4, 4), (4, 1)])
def test_tokens_and_scores_equal_the_step_of_fairseq(search, width, num_groups, strength):
  strategy = DiverseBeam(
    width, AverageLength(0.0), num_groups=num_groups, strength=strength, counted=2
  )
  for seed in range(3):
    model = history_model(vocab=VOCAB, seed=seed, scale=1.2)
    model = type(model)(model.table.at[:, PAD].add(-50.0))
    theirs = search.DiverseBeamSearch(Dictionary(range(VOCAB)), num_groups, strength)
    tokens, scores = hypotheses(theirs.step, model, width)
    ours = generate(
      model,
      PROMPTS,
      np.full(len(PROMPTS), PROMPTS.shape[1]),
      max_new_tokens=LIMIT,
      strategy=strategy,
      eos_id=None,
      pad_id=PAD,
      num_return=width,
    )
    order = np.argsort(-scores, axis=1, kind='stable')
    np.testing.assert_array_equal(ours.tokens, np.take_along_axis(tokens, order[..., None], 1))
    np.testing.assert_allclose(ours.scores, np.take_along_axis(scores, order, 1), atol=1e-4)
