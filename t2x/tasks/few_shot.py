"""Few-shot evaluation of language models (Brown et al. 2020, https://arxiv.org/abs/2005.14165): solved examples in
the prompt, then one to solve."""

import abc
import dataclasses
import string
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import numpy as np

from t2x.base.errors import UserError
from t2x.base.ranges import Natural, NonEmpty, Seed, Size, Text
from t2x.data import Source, Tokenizer
from t2x.data.sources.base import require_split
from t2x.data.sources.subset import spread
from t2x.decode import Greedy, Strategy
from t2x.models.ranks import ROUNDING, choice
from t2x.tasks.base import Task
from t2x.tasks.causal_lm import CausalLM
from t2x.tasks.evaluators import Evaluated, Evaluation, TaskEvaluator, text_of
from t2x.tasks.likelihoods import cut, encode_pair, log_likelihoods, stop_ids
from t2x.tasks.prediction import in_batches
from t2x.tasks.text import answers, continued

__all__ = ['ExactMatch', 'FewShot', 'LikeliestAnswer', 'LikeliestLabel', 'Scoring']


@dataclasses.dataclass(frozen=True)
class Question:
  """An example to solve.

  Attributes:
    prompt: the solved examples, and the example to solve up to its answer.
    answer: the correct answer.
    wrong: answers of other examples, distinct from the correct one, in a random order.
    stop: text after an answer.
  """

  prompt: str
  answer: str
  wrong: Sequence[str]
  stop: str


class Scoring(abc.ABC):
  """Computes metrics of the answers to questions."""

  # Number of answers of other examples that a question needs.
  num_wrong: int = 0

  @abc.abstractmethod
  def longest(self, question: Question, tokenizer: Tokenizer) -> int:
    """Returns the number of positions that a question needs in the model."""

  @abc.abstractmethod
  def __call__(
    self, questions: Sequence[Question], evaluated: Evaluated, batch_size: int
  ) -> tuple[dict[str, float], list[str]]:
    """Returns the metrics, and the model's answer to each question."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExactMatch(Scoring):
  """Generates the answers; computes the fraction that equal the correct ones except for white space at both ends.

  Attributes:
    num_tokens: maximum number of tokens of an answer.
    strategy: decoding strategy, with end tokens added.
  """

  num_tokens: Size = 64
  strategy: Strategy = Greedy()

  def longest(self, question, tokenizer):
    """Returns the tokens of the prompt and of the longest answer."""
    return len(tokenizer.prompt(question.prompt.rstrip())) + self.num_tokens - 1

  def __call__(self, questions, evaluated, batch_size):
    """Returns `exact_match` and the generated answers."""
    task, model = evaluated.task, evaluated.model()
    tokenizer = task.fitted
    ends = (*self.strategy.eos_ids, *stop_ids(tokenizer, (questions[0].stop,)))
    strategy = dataclasses.replace(self.strategy, eos_ids=ends)
    rows = [tokenizer.prompt(question.prompt.rstrip()) for question in questions]

    def answered(batch):
      generated = continued(
        model,
        batch,
        tokenizer,
        marks=task.token_marks,
        strategy=strategy,
        max_new_tokens=self.num_tokens,
      )
      return [text_of(best) for best, *_ in answers(generated, tokenizer)]

    results = in_batches(rows, answered, batch_size, watched=evaluated.watched)
    outputs = [
      cut(output, [question.stop]).strip()
      for (_, output), question in zip(results, questions, strict=True)
    ]
    matches = [o == q.answer.strip() for o, q in zip(outputs, questions, strict=True)]
    return {'exact_match': float(np.mean(matches))}, outputs


class Choice(Scoring):
  """Chooses the candidate with the largest log-likelihood after the prompt."""

  @abc.abstractmethod
  def candidates(self, question: Question) -> Sequence[str]:
    """Returns the candidates, which include the correct answer."""

  def longest(self, question, tokenizer):
    """Returns the tokens of the prompt and of the longest candidate."""
    pairs = (encode_pair(tokenizer, question.prompt, text) for text in self.candidates(question))
    return max(len(prompt) + len(ids) - 1 for prompt, ids in pairs)

  def __call__(self, questions, evaluated, batch_size):
    """Returns `choice_accuracy`, the same by log-likelihood per byte, its expectation by `chance`, and choices.

    No candidate is chosen ('') if several are the likeliest, or a likelihood is NaN.
    """
    task, model = evaluated.task, evaluated.model()
    tokenizer, chosen, per_byte, chance = task.fitted, list[str](), list[str](), list[float]()
    texts = [self.candidates(question) for question in questions]
    pairs = [
      encode_pair(tokenizer, question.prompt, text)
      for question, row in zip(questions, texts, strict=True)
      for text in row
    ]
    scores = log_likelihoods(
      model,
      pairs,
      pad_id=tokenizer.pad_id,
      batch_size=batch_size,
      marks=task.token_marks,
      watched=evaluated.watched,
    )
    sums = iter([score.log_prob for score in scores])
    for row in texts:
      values = np.array([next(sums) for _ in row])
      chosen.append(_likeliest(row, values))
      per_byte.append(_likeliest(row, values / [len(text.encode()) for text in row]))
      chance.append(1 / len(row))
    correct = [question.answer for question in questions]
    metrics = {
      'choice_accuracy': _equal(chosen, correct),
      'choice_accuracy_per_byte': _equal(per_byte, correct),
      'chance': float(np.mean(chance)),
    }
    return metrics, chosen


@dataclasses.dataclass(frozen=True, kw_only=True)
class LikeliestLabel(Choice):
  """Chooses among fixed answers.

  Attributes:
    labels: the answers.
  """

  labels: Annotated[Sequence[Text], NonEmpty]

  def candidates(self, question):
    """Returns the labels."""
    if question.answer not in self.labels:
      raise UserError(
        f'the answer {question.answer!r} is none of LikeliestLabel.labels = {list(self.labels)}'
      )
    return self.labels


@dataclasses.dataclass(frozen=True, kw_only=True)
class LikeliestAnswer(Choice):
  """Chooses among the correct answer and answers of other examples of the split.

  Attributes:
    num_wrong: number of wrong answers.
  """

  num_wrong: Size = 3

  def candidates(self, question):
    """Returns the wrong answers and the correct one."""
    return sorted([*question.wrong[: self.num_wrong], question.answer])


def _likeliest(texts: Sequence[str], scores: np.ndarray) -> str:
  number = int(choice(scores, ROUNDING * np.abs(scores).max()))
  return texts[number] if number >= 0 else ''


def _equal(outputs: Sequence[str], expected: Sequence[str]) -> float:
  return float(np.mean([o == e for o, e in zip(outputs, expected, strict=True)]))


@dataclasses.dataclass(frozen=True, kw_only=True)
class FewShot(TaskEvaluator):
  """Scores answers of a language model after `k` solved examples.

  The examples in a prompt depend only on `seed` and the index of the row.

  Attributes:
    k: number of solved examples in each prompt.
    source: the examples.
    template: text of an example, with the names of its fields in braces. The last field is the answer; the text
      after it, such as a line break, ends the answer.
    scoring: how answers are scored.
    instruction: text before the solved examples.
    shot_split: split of the solved examples.
    query_split: split of the examples to solve; may be `shot_split`, then no example is in its own prompt.
    seed: random seed of the solved examples.
    batch_size: rows per batch.
  """

  k: Natural
  source: Source
  scoring: Annotated[Sequence[Scoring], NonEmpty] = (ExactMatch(),)
  template: Text = '{source} = {target}\n'
  instruction: str = ''
  shot_split: Text = 'train'
  query_split: Text = 'validation'
  seed: Seed = 0
  batch_size: Size = 32

  fixed = frozenset({'split'})
  kinds: ClassVar[tuple[type[Task], ...]] = (CausalLM,)

  def __post_init__(self):
    for kind in (ExactMatch, Choice):
      if sum(isinstance(scoring, kind) for scoring in self.scoring) > 1:
        raise UserError(
          f'FewShot.scoring = {list(self.scoring)}: two of them have the same metrics; use an evaluator for each'
        )
    if self.split is not None:
      raise UserError('FewShot reads its own source: set FewShot.query_split instead of split')
    if not self._fields[-1][1] or not self._stop:
      raise UserError(
        f'FewShot.template = {self.template!r}: must have a field in braces, and text after the last one, '
        "such as a line break, as in '{source} = {target}\\n'"
      )

  @property
  def _fields(self) -> list[tuple[str, str]]:
    """The text before each field, and the field."""
    try:
      parts = [(text, name) for text, name, _, _ in string.Formatter().parse(self.template)]
    except ValueError as error:
      raise UserError(f'FewShot.template = {self.template!r}: {error}') from error
    return [(text, name) for text, name in parts if name is not None] or [('', '')]

  @property
  def _stop(self) -> str:
    """The text after the answer."""
    *_, (text, name, _, _) = string.Formatter().parse(self.template)
    return text if name is None else ''

  def check(self, task, model):
    """Also raises UserError if a prompt is too long for the model, or lacks solved or wrong examples."""
    super().check(task, model)
    longest = model.spec.max_length
    for row, question in enumerate(self.questions()):
      needed = max(scoring.longest(question, task.fitted) for scoring in self.scoring)
      if longest is not None and needed > longest:
        raise UserError(
          f'the prompt of example {row} with k = {self.k} needs {needed} positions, the model has {longest}: '
          'decrease FewShot.k'
        )

  def questions(self) -> list[Question]:
    """Returns the questions; they depend only on the settings and the source."""
    for split in (self.shot_split, self.query_split):
      require_split(self.source, split)
    shots, queries = self.source.load(self.shot_split), self.source.load(self.query_split)
    count = min(len(queries), self.num_examples or len(queries))
    return [self._question(i, shots, queries) for i in spread(count, len(queries))]

  def _question(
    self, row: int, shots: Sequence[Mapping[str, Any]], queries: Sequence[Mapping[str, Any]]
  ) -> Question:
    rng = np.random.default_rng((self.seed, row))
    same = self.shot_split == self.query_split
    if len(shots) - same < self.k:
      raise UserError(
        f"FewShot.k = {self.k}: the split '{self.shot_split}' of {self.source.describe()} has only "
        f'{len(shots) - same} other examples'
      )
    chosen = rng.choice(len(shots) - same, self.k, replace=False)
    # Skips the example itself.
    chosen = chosen + (chosen >= row) if same else chosen
    solved = ''.join(self._text(shots[int(i)])[0] for i in chosen)
    _, before, answer = self._text(queries[row])
    wrong = self._wrong(rng, answer, queries)
    return Question(self.instruction + solved + before, answer, wrong, self._stop)

  def _text(self, example: Mapping[str, Any]) -> tuple[str, str, str]:
    """Returns an example as text, its text up to the answer, and the answer."""
    before = ''
    for text, name in self._fields:
      if not isinstance(example.get(name), str):
        raise UserError(
          f'FewShot.template has the field {{{name}}}, which is not a text of the examples of '
          f'{self.source.describe()}: they have {", ".join(example)}'
        )
      before += text + example[name]
    answer = example[name]
    return before + self._stop, before[: len(before) - len(answer)], answer

  def _wrong(
    self, rng: np.random.Generator, answer: str, queries: Sequence[Mapping[str, Any]]
  ) -> list[str]:
    count, wrong = max(scoring.num_wrong for scoring in self.scoring), dict[str, None]()
    for i in rng.permutation(len(queries)) if count else ():
      if len(wrong) == count:
        break
      wrong |= {other: None for other in [self._text(queries[int(i)])[2]] if other != answer}
    if len(wrong) < count:
      raise UserError(
        f"LikeliestAnswer.num_wrong = {count}: the split '{self.query_split}' has only {len(wrong)} "
        f'answers other than {answer!r}'
      )
    return list(wrong)

  def __call__(self, evaluated):
    """Returns the metrics of each scoring, and samples."""
    questions = self.questions()
    metrics: dict[str, float | str] = {'examples': float(len(questions))}
    samples: list[dict[str, str]] = [
      {'prompt': question.prompt, 'answer': question.answer} for question in questions[:10]
    ]
    for scoring in self.scoring:
      results, outputs = scoring(questions, evaluated, self.batch_size)
      metrics |= results
      for sample, output in zip(samples, outputs, strict=False):
        sample[type(scoring).__name__] = output
    return Evaluation(metrics, samples)
