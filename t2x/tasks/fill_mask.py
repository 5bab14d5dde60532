"""Filling of masks in prompts with a masked language model."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from t2x.base.errors import UserError
from t2x.data import Tokenizer
from t2x.layers.marks import Marks
from t2x.models import TextModel
from t2x.models.language_model import select
from t2x.parallel.placed import Placed, module_of, runs_model, whole_rows
from t2x.tasks.masked_lm import MASK, check_masks, mask_spelling
from t2x.tasks.prediction import on_devices
from t2x.tasks.text import hidden_of, pad_prompts


def encode_masked(tokenizer: Tokenizer, prompt: str) -> list[int]:
  """Converts a text with masks to token ids.

  Tokenizers of model folders add their special tokens ([CLS] and [SEP]); tokenizers trained by t2x add the end of
  the text, as in the rows of training.
  """
  own, mask_id = mask_spelling(tokenizer), tokenizer.mask_id
  assert mask_id is not None  # `mask_spelling` raises without one.
  prompt = prompt.replace(MASK, own)
  if tokenizer.encode(own) == [mask_id]:
    # The tokenizer reads special tokens in texts, and knows which spaces belong to them.
    ids = tokenizer.encode(prompt)
  else:
    ids, *rest = map(tokenizer.encode, prompt.split(own))
    for part in rest:
      ids += [mask_id, *part]
  if tokenizer.single == Tokenizer.single:
    return [*ids, tokenizer.eos_id]
  return [j for item, _ in tokenizer.single for j in (ids if item == 'A' else [int(item)])]


def fill_masks(
  model: TextModel | Placed,
  tokenizer: Tokenizer,
  prompts: Sequence[str],
  top_k: int,
  marks: Marks = Marks(),
) -> list[dict[str, Any]]:
  """Ranks the tokens for each mask of each prompt. The masks of a prompt are predicted independently.

  Args:
    model: a language model whose tokens attend to both sides.
    tokenizer: its tokenizer.
    prompts: texts with masks, spelled `<mask>` or as the tokenizer does.
    top_k: number of tokens per mask.
    marks: marks of tokens that patterns of the model read.

  Returns:
    For each prompt, `prompt`, `text` (with the likeliest tokens) and `masks`: for each mask in the order of
    the text, `top_k` dicts with `id`, `token` and `probability`, likeliest first.

  Raises:
    UserError: a prompt has no mask.
  """
  for prompt in prompts:
    check_masks(tokenizer, prompt)
  rows = [encode_masked(tokenizer, prompt) for prompt in prompts]
  ids, lengths = pad_prompts(rows, tokenizer.pad_id, longest=_longest(model, rows))
  segments = (np.arange(ids.shape[1]) < lengths[:, None]).astype(np.int32)
  places = [np.flatnonzero(np.array(row) == tokenizer.mask_id) for row in rows]
  picked, _ = pad_prompts([p.tolist() for p in places], 0, multiple=1)
  batch = {'tokens': ids, 'segments': segments, 'types': np.zeros_like(ids)}
  run = functools.partial(_log_probs, marks=marks)
  log_probs = on_devices(run, whole_rows(model), batch, picked)
  return [
    _answer(tokenizer, prompt, row, place, scores, top_k)
    for prompt, row, place, scores in zip(prompts, rows, places, log_probs, strict=True)
  ]


def _longest(model: TextModel | Placed, rows: Sequence[Sequence[int]]) -> int | None:
  limit, longest = module_of(model).spec.max_length, max(map(len, rows))
  if limit is not None and longest > limit:
    raise UserError(f'a prompt has {longest} tokens, but the model supports {limit}: shorten it')
  return limit


@functools.partial(jax.jit, static_argnames='marks')
@runs_model
def _log_probs(
  model: TextModel, batch: dict[str, Array], positions: Int[Array, 'batch masks'], marks: Marks
) -> Float[Array, 'batch masks vocab']:
  x = hidden_of(model, batch, None, marks).x
  return jax.nn.log_softmax(model.logits(select(x, positions)).astype(jnp.float32))


def _answer(
  tokenizer: Tokenizer,
  prompt: str,
  row: Sequence[int],
  places: np.ndarray,
  log_probs: np.ndarray,
  top_k: int,
) -> dict[str, Any]:
  order = np.argsort(-log_probs[: len(places)], axis=1, kind='stable')[:, :top_k]
  filled = np.array(row)
  filled[places] = order[:, 0]
  masks = [
    [
      {'id': int(i), 'token': token, 'probability': float(np.exp(scores[i]))}
      for i, token in zip(ids, tokenizer.pieces(ids.tolist()), strict=True)
    ]
    for ids, scores in zip(order, log_probs, strict=False)
  ]
  return {'prompt': prompt, 'text': tokenizer.decode(filled.tolist()), 'masks': masks}
