"""Features and prompts of model folders of speech: `preprocessor_config.json`, and the forced tokens of
generation_config.json."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from t2x.base.errors import UserError
from t2x.base.external_files import SMALL, Fields, Int, Object, read_json, shown
from t2x.data import Tokenizer
from t2x.domains.speech.transcription import Transcription
from t2x.models import Model

# Fields of WhisperFeatureExtractor, with its defaults.
FEATURES = {
  'chunk_length': Int(30, 1, 10_000),
  'feature_size': Int(80, 1, 10_000),
  'hop_length': Int(160, 1, 100_000),
  'n_fft': Int(400, 1, 100_000),
  'sampling_rate': Int(16_000, 1, 1_000_000),
}
PREPROCESSOR = 'preprocessor_config.json'
LANGUAGE = re.compile(r'<\|([a-z]{2,3})\|>')


def speech_gin(
  folder: Path, model: Model, tokenizer: Tokenizer, generation: Mapping[str, Any], notes: list[str]
) -> str:
  """Returns the gin text of the features and the prompt of a `Transcription` task.

  Args:
    folder: the model folder.
    model: the model's shapes.
    tokenizer: tokenizer of the model.
    generation: fields of config.json and generation_config.json.
    notes: remarks for the user, to which this adds the language.

  Raises:
    UserError: a field has a wrong type, or the model reads different features.
  """
  path = folder / PREPROCESSOR
  fields = read_json(path, SMALL) if path.exists() else {}
  values = Fields(fields, FEATURES, str(path))
  bands = model.spec.first.shape[-1]
  if fields and values['feature_size'] != bands:
    raise UserError(
      f'{path}: feature_size = {values["feature_size"]}, but the model reads {bands} features'
    )
  frames = values['chunk_length'] * values['sampling_rate'] // values['hop_length']
  prompt, language = _prompt(generation, tokenizer, str(folder))
  defaults = {} if language is None else {'language': language}
  if language is not None:
    notes.append(f"the prompt has the language '{language}': Transcription.defaults sets another")
  return f"""
Transcription:
  modality = @SpeechModality()
  prompt = {tuple(prompt)!r}
  defaults = {defaults!r}
SpeechModality.features = @LogMel()
LogMel:
  rate = {values['sampling_rate']}
  num_features = {bands}
  window = {values['n_fft']}
  hop = {values['hop_length']}
  num_frames = {frames}
"""


def _prompt(
  fields: Mapping[str, Any], tokenizer: Tokenizer, where: str
) -> tuple[list[str], str | None]:
  """Returns the names of the tokens after the start token, and the value of {language} in these names."""
  forced = fields.get('forced_decoder_ids') or []
  languages = Fields(dict(fields), {'lang_to_id': Object(None)}, where)['lang_to_id'] or {}
  if not forced:
    plain = ['<|notimestamps|>'] if fields.get('no_timestamps_token_id') is not None else []
    return (['<|{language}|>', '<|transcribe|>', *plain], 'en') if languages else (plain, None)
  names, language = [], None
  for place, entry in enumerate(forced, 1):
    valid = isinstance(entry, list) and len(entry) == 2 and entry[0] == place
    token = entry[1] if valid else None
    known = isinstance(token, int) and 0 <= token < tokenizer.vocab_size
    if not valid or not (known or (token is None and place == 1)):
      raise UserError(
        f'{where}: forced_decoder_ids = {shown(forced)} is not supported: its entries must be [place, id]'
      )
    name = '<|en|>' if token is None else tokenizer.pieces([token])[0]
    if place == 1 and (match := LANGUAGE.fullmatch(name)):
      name, language = '<|{language}|>', match[1]
    names.append(name)
  return names, language


def speech_fields(task: Transcription, folder: Path) -> dict[str, Any]:
  """Writes the features of a `Transcription` to a model folder, and returns fields of config.json.

  Raises:
    UserError: the frames are no whole number of seconds.
  """
  features = task.modality.features
  seconds, rest = divmod(features.num_frames * features.hop, features.rate)
  if rest:
    raise UserError(
      f'LogMel.num_frames = {features.num_frames} are no whole number of seconds, which {PREPROCESSOR} needs: '
      'train with another number'
    )
  values = {
    'chunk_length': seconds,
    'feature_extractor_type': 'WhisperFeatureExtractor',
    'feature_size': features.num_features,
    'hop_length': features.hop,
    'n_fft': features.window,
    'processor_class': 'WhisperProcessor',
    'sampling_rate': features.rate,
  }
  (folder / PREPROCESSOR).write_text(json.dumps(values, indent=2) + '\n', encoding='utf-8')
  return {'max_source_positions': features.num_frames // 2}
