"""Log-likelihoods of continuations of prompts under a language model, and texts at which generation stops."""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from t2x.base.errors import UserError
from t2x.data import Tokenizer
from t2x.layers import Tokens
from t2x.layers.marks import Marks
from t2x.models import TextModel
from t2x.models.language_model import select
from t2x.models.ranks import choice
from t2x.parallel.placed import Placed, module_of, runs_model, whole_rows
from t2x.tasks.prediction import Watched, in_batches, on_devices
from t2x.tasks.text import pad_prompts

# The ids of a prompt and of its continuation.
Pair = tuple[Sequence[int], Sequence[int]]


@dataclasses.dataclass(frozen=True)
class Likelihood:
  """The likelihood of a continuation.

  Attributes:
    log_prob: sum of the log-probabilities (nats) of its tokens.
    greedy: whether each of its tokens is the likeliest one, so that greedy decoding generates it.
  """

  log_prob: float
  greedy: bool


def encode_pair(tokenizer: Tokenizer, prompt: str, continuation: str) -> Pair:
  """Returns the ids of a prompt and of its continuation.

  White space at the end of the prompt becomes the beginning of the continuation, because tokens of words include
  the white space before them. The two texts are encoded together.

  Raises:
    UserError: the continuation has no tokens.
  """
  stripped = prompt.rstrip()
  continuation = prompt[len(stripped) :] + continuation
  ids = tokenizer.encode(continuation)
  before = tokenizer.prompt(stripped)
  if stripped:
    both = tokenizer.prompt(stripped + continuation)
    # A token may cover the end of the prompt and the beginning of the continuation.
    differ = (i for i, pair in enumerate(zip(before, both, strict=False)) if pair[0] != pair[1])
    shared = next(differ, min(len(before), len(both)))
    before, ids = both[:shared], both[shared:]
  if not ids:
    raise UserError(f'the continuation {continuation!r} of {stripped[-40:]!r} has no tokens')
  return before or [tokenizer.bos_id], ids


def log_likelihoods(
  model: TextModel | Placed,
  pairs: Sequence[Pair],
  *,
  pad_id: int,
  batch_size: int,
  marks: Marks = Marks(),
  watched: Watched = iter,
) -> list[Likelihood]:
  """Computes the log-likelihood of each continuation given its prompt.

  Args:
    model: a causal language model. If one of its attention patterns reads a prefix, the prefix is the prompt.
    pairs: ids of prompts and of their continuations, each at least one.
    pad_id: the id of padding.
    batch_size: rows per batch.
    marks: further marks of tokens that patterns of the model read.
    watched: wraps the iterable of batches.

  Raises:
    UserError: a row is longer than the model supports.
  """
  score = functools.partial(_score, further=marks)

  def scored(batch):
    arrays = _arrays(batch, pad_id, module_of(model).spec.max_length)
    return list(zip(*on_devices(score, whole_rows(model), *arrays), strict=True))

  results = in_batches(
    pairs, scored, batch_size, size=lambda pair: sum(map(len, pair)), watched=watched
  )
  return [Likelihood(float(log_prob), bool(greedy)) for _, (log_prob, greedy) in results]


def _arrays(rows: Sequence[Pair], pad_id: int, longest: int | None) -> tuple[np.ndarray, ...]:
  """Returns inputs and lengths of prompts and rows, and positions and ids of the predicted tokens (-1: none)."""
  inputs = [[*prompt, *continuation[:-1]] for prompt, continuation in rows]
  width = max(map(len, inputs))
  if longest is not None and width > longest:
    raise UserError(
      f'a prompt with its continuation has {width} tokens, the model has {longest} positions: shorten it'
    )
  ids, lengths = pad_prompts(inputs, pad_id, longest=longest)
  prompts = np.array([len(prompt) for prompt, _ in rows], np.int32)
  size = -(-max(len(continuation) for _, continuation in rows) // 8) * 8
  labels = np.full((len(rows), size), -1, np.int32)
  for label, (_, continuation) in zip(labels, rows, strict=True):
    label[: len(continuation)] = continuation
  index = np.minimum(prompts[:, None] - 1 + np.arange(size, dtype=np.int32), ids.shape[1] - 1)
  return ids, lengths, prompts, index, labels


@functools.partial(jax.jit, static_argnames='further')
@runs_model
def _score(model, ids, lengths, prompts, index, labels, *, further):
  """Returns the sum of log-probabilities and whether all labels are the likeliest tokens, by row."""
  positions = jnp.arange(ids.shape[1])
  marks = {'prefix': positions < prompts[:, None]} if model.spec.reads_prefix else {}
  segments = (positions < lengths[:, None]).astype(jnp.int32)
  marks |= further.of_rows(ids, segments)
  tokens = Tokens.row(ids.shape[1], segments=segments, right_padded=True, marks=marks)
  logits = model.logits(select(model.hidden(ids, tokens=tokens).x, index)).astype(jnp.float32)
  chosen = jnp.take_along_axis(logits, jnp.maximum(labels, 0)[..., None], axis=-1)[..., 0]
  log_probs = chosen - jax.nn.logsumexp(logits, axis=-1)
  real = labels >= 0
  greedy = (choice(logits) == labels) | ~real
  return jnp.where(real, log_probs, 0.0).sum(axis=1), greedy.all(axis=1)


@functools.lru_cache(maxsize=64)
def stop_ids(tokenizer: Tokenizer, stops: tuple[str, ...]) -> tuple[int, ...]:
  """Returns the end token, and the tokens whose text contains one of `stops`, at which generation can end."""
  texts = ((i, tokenizer.decode([i])) for i in range(tokenizer.vocab_size))
  return (tokenizer.eos_id, *(i for i, text in texts if any(stop in text for stop in stops)))


def cut(text: str, stops: Sequence[str]) -> str:
  """Returns the text before the first of the texts in `stops`."""
  return text[: min((i for stop in stops if (i := text.find(stop)) >= 0), default=len(text))]
