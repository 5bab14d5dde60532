"""Transcription: the text of a recording, by an encoder-decoder with the features and the prompts of Whisper
(https://arxiv.org/abs/2212.04356)."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from t2x.base.errors import UserError
from t2x.base.ranges import NonEmpty, Positive, Size, Text
from t2x.domains.speech.recordings import read_recording, resampled
from t2x.domains.speech.spectrograms import LogMel
from t2x.layers import InputKind
from t2x.tasks.captions import Captions, Modality, PrepareCaption

__all__ = ['SpeechModality', 'Transcription', 'speech_tokens']


def speech_tokens(
  *,
  languages: Annotated[Sequence[Text], NonEmpty],
  seconds: Positive | None = None,
  step: Positive = 0.02,
) -> tuple[str, ...]:
  """Returns names of special tokens for `BPE.named`: languages, transcription, and timestamps from 0.

  Args:
    languages: codes of the languages, such as 'en'.
    seconds: the last timestamp; None: no timestamps, '<|notimestamps|>' is the only one.
    step: seconds from one timestamp to the next; Whisper's is 0.02.
  """
  count = 0 if seconds is None else round(seconds / step) + 1
  return (
    *(f'<|{language}|>' for language in languages),
    *('<|transcribe|>', '<|notimestamps|>'),
    *(timestamp(i * step) for i in range(count)),
  )


def timestamp(seconds: float) -> str:
  """Returns the name of a timestamp token, as Whisper writes it."""
  return f'<|{seconds:.2f}|>'


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpeechModality(Modality):
  """Recordings of one channel, or paths of WAV files, as frames of a mel spectrogram.

  Attributes:
    features: computes the frames. Recordings are padded with silence to their number, as in Whisper, and cut.
    rate: samples per second of recordings in examples, which are resampled to `features.rate`; None: they have that
      rate. Files state their own.
  """

  features: LogMel = LogMel()
  rate: Size | None = None

  kind: ClassVar[InputKind] = 'audio'

  def spec(self, batch_size):
    shape = batch_size, self.features.num_frames, self.features.num_features
    return {'source': jax.ShapeDtypeStruct(shape, jnp.float32)}

  def prepare(self, source, random):
    samples = np.asarray(self.opened(source) if isinstance(source, str) else source)
    if np.issubdtype(samples.dtype, np.integer):  # 16 bits per sample, as in TFDS.
      samples = samples.astype(np.float32) / np.float32(32768)
    if samples.ndim == 1 and self.rate is not None:
      samples = resampled(samples, self.rate, self.features.rate)
    return {'source': self.features(samples)}

  def tokens(self, batch):
    """None: silence is part of the input, as in Whisper."""

  def read(self, path):
    """Returns the samples of a WAV file at the rate of the recordings in examples."""
    samples, rate = read_recording(path)
    samples = resampled(samples, rate, self.rate or self.features.rate)
    if (seconds := len(samples) / (self.rate or self.features.rate)) > self.seconds:
      raise UserError(
        f'{path} has {seconds:.1f} seconds, but the model reads {self.seconds:g}: divide it, or raise LogMel.num_frames'
      )
    return samples

  @property
  def seconds(self) -> float:
    """The length of the frames of a recording."""
    return self.features.num_frames * self.features.hop / self.features.rate


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareTranscription(PrepareCaption):
  """Prepares a recording and its text, with the prompt before it.

  Attributes:
    prompt: names of special tokens; {NAME} is a field of the example.
    defaults: fields of examples without them.
    timestamps: seconds from one timestamp to the next; None: the text has none.
  """

  prompt: tuple[str, ...]
  defaults: tuple[tuple[str, str], ...]
  timestamps: float | None

  task: ClassVar[str] = 'Transcription'

  def target_ids(self, row):
    tokenizer = self.tokenizer
    return [*self.first_ids(row), *self._text_ids(row), tokenizer.eos_id]

  def first_ids(self, row: Mapping[str, Any]) -> list[int]:
    """Returns the ids of the prompt of an example."""
    return [self.tokenizer.named_id(name) for name in self.names(row)]

  def names(self, row: Mapping[str, Any]) -> Iterator[str]:
    """Yields the names of the tokens of the prompt of an example."""
    for name in self.prompt:
      try:
        yield name.format_map({**dict(self.defaults), **row})
      except KeyError as error:
        raise UserError(
          f"Transcription.prompt has '{name}', but a recording has no field {error}: set it with "
          f'Transcription.defaults = {{{error}: ...}}'
        ) from error
      except (ValueError, IndexError, AttributeError, TypeError) as error:
        raise UserError(
          f"Transcription.prompt has '{name}', whose braces name no field ({error}): write "
          f'{{NAME}}, or {{{{ for a brace'
        ) from error

  def _text_ids(self, row: Mapping[str, Any]) -> list[int]:
    """Returns the ids of the text; with timestamps, the tokens of its start and end enclose each word."""
    encode = self.tokenizer.target.encode
    if self.timestamps is None:
      return encode(row['target'])
    words, times = row['target'].split(), row.get('times')
    if times is None or len(times) != len(words):
      raise UserError(
        f'Transcription.timestamps needs a start and an end of each of {len(words)} words in the field times'
      )
    ids: list[int] = []
    for word, (start, stop) in zip(words, times, strict=True):
      ids += [self._time_id(start), *encode(f' {word}'), self._time_id(stop)]
    return ids

  def _time_id(self, seconds: float) -> int:
    assert self.timestamps is not None
    return self.tokenizer.named_id(timestamp(round(seconds / self.timestamps) * self.timestamps))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Transcription(Captions):
  """Predicts the text of a recording after a prompt of special tokens, which is an input in training too: the loss
  does not cover it.

  Sources of examples are samples [samples], from -1 to 1 or integers of 16 bits, or paths of WAV files.

  Attributes:
    modality: computes the features.
    target_length: maximum number of target tokens, including the prompt and eos.
    prompt: names of special tokens of the tokenizer between the start token and the text; `{NAME}` is the field NAME
      of an example, as in ('<|{language}|>', '<|transcribe|>', '<|notimestamps|>').
    defaults: fields of recordings that lack them, such as {'language': 'en'} for files.
    timestamps: seconds from one timestamp to the next: the tokens of its start and end then enclose each word of a
      target, from the field `times` of the examples, [words] of (start, end) in seconds. None: no timestamps.
  """

  modality: SpeechModality = SpeechModality()
  prompt: Sequence[Text] = ()
  defaults: Mapping[Text, Text] = dataclasses.field(default_factory=dict)
  timestamps: Positive | None = None

  def transform(self, *, train):
    """Returns the transform that computes the features and the ids."""
    return self._prepare(train)

  def _prepare(self, train: bool = False) -> PrepareTranscription:
    return PrepareTranscription(
      modality=self.modality,
      tokenizer=self.fitted,
      fingerprint=self.fitted.fingerprint,
      length=self.target_length,
      train=train,
      prompt=tuple(self.prompt),
      defaults=tuple(self.defaults.items()),
      timestamps=self.timestamps,
    )

  @property
  def answer_length(self):
    return self.target_length - self.num_first

  def target_weights(self, batch):
    """Returns weight 1 for each target token that is neither padding nor in the prompt."""
    in_text = jnp.arange(self.target_length) >= self.num_first
    return super().target_weights(batch) * in_text

  @property
  def num_first(self):
    return len(self.prompt)

  def first_ids(self, example):
    return self._prepare().first_ids(example)

  def check_prompt(self, prompt):
    """Also raises UserError if the prompt of the decoder needs a field that files lack."""
    super().check_prompt(prompt)
    self.first_ids({})

  def generate(self, model, prompts, *, strategy, max_new_tokens, num_return=1, seed=0):
    """Generates the text of each recording, of at most `target_length` tokens with its prompt."""
    return super().generate(
      model,
      prompts,
      strategy=strategy,
      max_new_tokens=min(max_new_tokens, self.answer_length),
      num_return=num_return,
      seed=seed,
    )
