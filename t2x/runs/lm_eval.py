"""Evaluation of runs by lm-evaluation-harness (https://github.com/EleutherAI/lm-evaluation-harness).

    pip install 'lm-eval>=0.4.13,<0.5'
    python -m t2x.runs.lm_eval run --model t2x --model_args run=runs/gpt --tasks TASK --include_path FOLDER

takes the arguments of the command `lm_eval`, which has no plugins for models. It imports neither torch nor a network
client for tasks whose data are local files.
"""

import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from t2x.api import load
from t2x.base.errors import UserError
from t2x.decode import Greedy, Sampling, Strategy
from t2x.tasks import CausalLM
from t2x.tasks.likelihoods import Pair, cut, encode_pair, log_likelihoods, stop_ids
from t2x.tasks.text import answers, continued

try:
  from lm_eval.api.model import TemplateLM
  from lm_eval.api.registry import register_model
  from lm_eval.models.utils import normalize_gen_kwargs
  from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
except ImportError as missing:
  message = f'lm-evaluation-harness is not installed ({missing}): pip install lm-eval'
  if __name__ == '__main__':
    print(f't2x: {message}', file=sys.stderr)
    sys.exit(2)
  raise UserError(message) from missing

log = logging.getLogger('t2x')

# Default number of generated tokens, as for the models of lm-evaluation-harness.
MAX_NEW_TOKENS = 256


@register_model('t2x')
class T2XModel(TemplateLM):
  """A causal language model of t2x.

  Args:
    run: a run folder, or a Hugging Face model folder (config.json, safetensors).
    checkpoint: 'best', 'last' or a step of a run.
    batch_size: rows per batch.
    max_length: maximum number of tokens in the model's input; longer prompts lose their beginning. None: the
      positions of the model or, if they are not limited, the row length in training.
    score_end: also scores the end token after each document of perplexity tasks. Then bits per byte equal those of
      `t2x eval` if each document fits into a row.
    device: no effect; lm-evaluation-harness always sets it. JAX chooses the device (JAX_PLATFORMS).

  Raises:
    UserError: the model is no causal language model, or a setting is invalid.
  """

  def __init__(
    self,
    run: str,
    checkpoint: str | int = 'last',
    batch_size: str | int = 1,
    max_length: int | None = None,
    score_end: bool = False,
    device: str | None = None,
  ):
    super().__init__()
    if not str(batch_size).isdigit() or not int(batch_size):
      raise UserError(f'batch_size = {batch_size} must be an integer of at least 1')
    self.batch_size, self._score_end = int(batch_size), score_end
    which: Any = int(checkpoint) if str(checkpoint).isdigit() else checkpoint
    loaded = load(run, checkpoint=which)
    if not isinstance(task := loaded.task, CausalLM):
      raise UserError(
        f'lm-evaluation-harness needs a causal language model, {run} has the task @{type(task).__name__}'
      )
    self._model, self._tokenizer, self._marks = loaded.model, task.fitted, task.token_marks
    limit = loaded.model.model.spec.max_length
    self.max_length = max_length or limit or task.length
    if limit is not None and self.max_length > limit:
      raise UserError(f'max_length = {max_length}: the model has {limit} positions')

  @property
  def eot_token_id(self) -> int:
    """The end token."""
    return self._tokenizer.eos_id

  @property
  def prefix_token_id(self) -> int:
    """The token before a text, bos as in training."""
    return self._tokenizer.bos_id

  def tok_encode(
    self, string: str, add_special_tokens: bool | None = None, **kwargs: object
  ) -> list[int]:
    """Returns the ids of a text, by default as those of a prompt."""
    if add_special_tokens is False:
      return self._tokenizer.encode(string)
    return self._tokenizer.prompt(string)

  def _encode_pair(self, context: str, continuation: str) -> Pair:
    return encode_pair(self._tokenizer, context, continuation)

  def _loglikelihood_tokens(
    self, requests: Sequence[tuple[Any, Sequence[int], Sequence[int]]], **kwargs: object
  ) -> list[tuple[float, bool]]:
    """Returns log-likelihood and greediness of each (text, ids of the prompt, ids of the continuation)."""
    scores = [
      (score.log_prob, score.greedy)
      for score in self._scores([(prompt, ids) for _, prompt, ids in requests])
    ]
    for (text, _, _), score in zip(requests, scores, strict=True):
      if text is not None:
        self.cache_hook.add_partial('loglikelihood', text, score)
    return scores

  def _scores(self, pairs: Sequence[Pair]) -> list[Any]:
    rows = [(self._end_of(prompt, len(ids) - 1), ids) for prompt, ids in pairs]
    if shortened := sum(len(row[0]) < len(pair[0]) for row, pair in zip(rows, pairs, strict=True)):
      log.warning('%d prompts were cut to the last %d tokens', shortened, self.max_length)
    return log_likelihoods(
      self._model,
      rows,
      pad_id=self._tokenizer.pad_id,
      batch_size=self.batch_size,
      marks=self._marks,
    )

  def _end_of(self, prompt: Sequence[int], num_new: int) -> Sequence[int]:
    """Returns the end of a prompt that leaves room for `num_new` tokens."""
    room = self.max_length - num_new
    if room < 1:
      raise UserError(f'{num_new} tokens after a prompt exceed max_length = {self.max_length}')
    return prompt[-room:]

  def loglikelihood_rolling(
    self, requests: Sequence[Any], disable_tqdm: bool = False
  ) -> list[float]:
    """Returns the log-likelihood of each text, in windows of `max_length` tokens, the last one with full context."""
    windows = [list(self._windows(request.args[0])) for request in requests]
    scores = iter(self._scores([pair for row in windows for pair in row]))
    totals = [sum(next(scores).log_prob for _ in row) for row in windows]
    for request, total in zip(requests, totals, strict=True):
      self.cache_hook.add_partial('loglikelihood_rolling', request.args, total)
    return totals

  def _windows(self, text: str) -> Iterator[Pair]:
    ids = self._tokenizer.encode(text) + [self.eot_token_id] * self._score_end
    windows = get_rolling_token_windows(ids, self.prefix_token_id, self.max_length, 1)
    yield from map(make_disjoint_window, windows)

  def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
    """Generates a continuation of each context until one of the texts in `until`."""
    outputs, groups = [''] * len(requests), dict[str, list[int]]()
    for i, request in enumerate(requests):
      groups.setdefault(json.dumps(request.args[1], sort_keys=True), []).append(i)
    for text, indices in groups.items():
      settings = normalize_gen_kwargs(json.loads(text), MAX_NEW_TOKENS)
      # Batches of similar length have little padding.
      indices.sort(key=lambda i: len(requests[i].args[0]), reverse=True)
      for start in range(0, len(indices), self.batch_size):
        chosen = indices[start : start + self.batch_size]
        texts = self._continue([requests[i].args[0] for i in chosen], dict(settings), chosen)
        for i, output in zip(chosen, texts, strict=True):
          outputs[i] = output
          self.cache_hook.add_partial('generate_until', requests[i].args, output)
    return outputs

  def _continue(
    self, contexts: Sequence[str], settings: dict[str, Any], numbers: Sequence[int]
  ) -> list[str]:
    """Continues a batch of contexts, cut at the first stop. Samples depend on the numbers of the requests."""
    tokenizer = self._tokenizer
    stops = [stop for stop in settings.pop('until') if stop]
    num_tokens = settings.pop('max_gen_toks')
    ends = stop_ids(tokenizer, tuple(stops))
    rows = [self._end_of(tokenizer.prompt(text), num_tokens - 1) for text in contexts]
    generated = continued(
      self._model,
      # The last batch is padded to the same shape, to avoid another compilation.
      rows + [rows[-1]] * (self.batch_size - len(rows)),
      tokenizer,
      seed=(0, [*numbers, *[numbers[-1]] * (self.batch_size - len(rows))]),
      marks=self._marks,
      strategy=strategy_of(settings, ends),
      max_new_tokens=num_tokens,
    )
    texts = [best['text'] for best, *_ in answers(generated, tokenizer)]
    return [cut(text, stops) for text in texts[: len(contexts)]]


def strategy_of(settings: Mapping[str, Any], ends: tuple[int, ...]) -> Strategy:
  """Returns the strategy of the harness's settings; raises UserError for settings that t2x does not have."""
  values = dict(settings)
  sampled, temperature = values.pop('do_sample', False), values.pop('temperature', None)
  if not sampled:
    # Without sampling, filters have no effect, also in transformers.
    values = {name: value for name, value in values.items() if name not in ('top_k', 'top_p')}
  top_k, top_p = values.pop('top_k', None), values.pop('top_p', None)
  if values:
    raise UserError(f'generation settings of the task are not supported: {", ".join(values)}')
  if not sampled:
    return Greedy(eos_ids=ends)
  if temperature == 0:
    raise UserError(
      'do_sample = True with temperature = 0.0: set do_sample = False, or a temperature'
    )
  temperature = 1.0 if temperature is None else temperature
  return Sampling(temperature=temperature, top_k=top_k or None, top_p=top_p, eos_ids=ends)


def main() -> int:
  """Runs the command line of lm-evaluation-harness; returns its exit code."""
  from lm_eval.__main__ import cli_evaluate

  try:
    cli_evaluate()
  except UserError as error:
    print(f't2x: {error}', file=sys.stderr)
    return error.exit_code
  return 0


if __name__ == '__main__':
  sys.exit(main())
