"""SentencePiece tokenizers of model folders: T5 (https://arxiv.org/abs/1910.10683), ALBERT
(https://arxiv.org/abs/1909.11942), SigLIP (https://arxiv.org/abs/2303.15343) and Marian (https://arxiv.org/abs/1804.00344)."""

import dataclasses
import functools
import json
import re
import string
import unicodedata
from collections.abc import Mapping

from t2x.base.external_files import REQUIRED, Bool, Fields
from t2x.data.tokenizers.base import SPACE, Template, Tokenizer
from t2x.data.tokenizers.hub_limits import distinct_ids, sentencepiece_model, vocabulary
from t2x.data.tokenizers.sentencepiece import SentencePieceModel
from t2x.data.tokenizers.special_tokens import SpecialTokens, TokenizerFolder, Unsupported

# Fields of `Fold` in the tokenizer.json of a run folder.
FOLD = {'lower': Bool(REQUIRED), 'strip': Bool(REQUIRED), 'punctuation': Bool(False)}
# SigLIP's.
WITHOUT_PUNCTUATION = 'SiglipTokenizer'
PUNCTUATION = str.maketrans('', '', string.punctuation)


@dataclasses.dataclass(frozen=True)
class Fold:
  """The normalisation of ALBERT and SigLIP before SentencePiece; also replaces `` and '' by double quotes.

  Attributes:
    lower: converts to lower case.
    strip: decomposes characters and removes accents.
    punctuation: removes the punctuation of ASCII.
  """

  lower: bool = False
  strip: bool = False
  punctuation: bool = False

  def __call__(self, text: str) -> tuple[str, list[tuple[int, int]]]:
    """Returns the normalised text and the span of each of its characters in the original text."""
    folded: list[str] = []
    spans: list[tuple[int, int]] = []
    for match in re.finditer("``|''|.", text, re.DOTALL):
      part = '"' if len(match[0]) > 1 else match[0]
      if self.strip:
        decomposed = unicodedata.normalize('NFKD', part)
        part = ''.join(c for c in decomposed if unicodedata.category(c) != 'Mn')
      if self.lower:
        part = ''.join(character.lower() for character in part)
      if self.punctuation:
        part = part.translate(PUNCTUATION)
      folded += part
      spans += [match.span()] * len(part)
    return ''.join(folded), spans


class SpieceTokenizer(SentencePieceModel):
  """A SentencePiece model with the special tokens of a model folder."""

  kind = 'spiece'

  def __init__(
    self,
    model: bytes,
    tokens: SpecialTokens,
    added: Mapping[str, int],
    fold: Fold | None = None,
  ):
    """
    Args:
      model: contents of the SentencePiece model file.
      tokens: the special ids.
      added: special tokens that are recognised in a text, with their ids.
      fold: normalisation of the text.
    """
    super().__init__(model)
    self.special_tokens, self._added, self._fold = tokens, dict(added), fold
    tokens.set_attributes(self)
    self._add({name: [i] for name, i in added.items()})
    self.vocab_size = len(self._pieces)

  def __reduce__(self):
    return type(self), (self._model, self.special_tokens, self._added, self._fold)

  @functools.cached_property
  def _pieces(self):
    pieces, names = super()._pieces, {i: name for name, i in self._added.items()}
    return pieces + [names[i] for i in range(len(pieces), max(names, default=0) + 1)]

  def _locate(self, text):
    if self._fold is None:
      return super()._locate(text)
    folded, origins = self._fold(text)
    ids, spans = super()._locate(folded)
    starts = [start for start, _ in origins] + [len(text)]
    stops = [0] + [stop for _, stop in origins]
    return ids, [(starts[b], stops[e] if e > b else starts[b]) for b, e in spans]

  def encode(self, text):
    """Returns the ids; names of special tokens in the text become special ids."""
    return self.locate(text).ids.tolist()

  def decode(self, ids):
    """Returns the text as SentencePiece joins it; skips special ids, including unk."""
    return self._processor.decode([i for i in self._text_ids(ids) if i != self.unk_id])

  @functools.cached_property
  def special(self):
    """Mask over the vocabulary; also True for added tokens."""
    mask = super().special
    # Marian's language codes are part of the text.
    mask[[i for name, i in self._added.items() if not name.startswith('>>')]] = True
    return mask

  def files(self):
    """Returns the SentencePiece model, and tokenizer.json with the special tokens."""
    fold = self._fold and dataclasses.asdict(self._fold)
    special_tokens = dataclasses.asdict(self.special_tokens)
    description = self._description(known=special_tokens, added=self._added, fold=fold)
    return {'tokenizer.json': description, 'sentencepiece.model': self._model}

  @classmethod
  def load(cls, folder, saved):
    model = sentencepiece_model(folder / 'sentencepiece.model')
    tokens, added = SpecialTokens.read(saved['known']), distinct_ids(saved['added'], str(folder))
    fold = saved['fold'] and Fold(**Fields(saved['fold'], FOLD, str(folder)))
    return cls(model, tokens, added, fold)

  def hub_files(self):
    """Returns spiece.model, and tokenizer_config.json with the tokenizer class."""
    config: dict[str, object] = {'tokenizer_class': 'T5Tokenizer'}
    if self._fold is None:
      config['extra_ids'] = self.vocab_size - self._processor.vocab_size()
    elif self._fold.punctuation:
      config = {'tokenizer_class': WITHOUT_PUNCTUATION, 'do_lower_case': self._fold.lower}
    else:
      config = {'tokenizer_class': 'AlbertTokenizer', 'do_lower_case': self._fold.lower}
      config['keep_accents'] = not self._fold.strip
    return {'spiece.model': self._model, 'tokenizer_config.json': json.dumps(config).encode()}


class MarianTokenizer(SpieceTokenizer):
  """Two SentencePiece models, for source and target language, with one vocabulary of ids."""

  kind = 'marian'

  def __init__(
    self, model: bytes, other: bytes, special_tokens: SpecialTokens, vocab: Mapping[str, int]
  ):
    """
    Args:
      model: SentencePiece model of the language to encode.
      other: SentencePiece model of the second language.
      special_tokens: the special ids.
      vocab: piece -> id.
    """
    self._other, self._vocab = other, dict(vocab)
    names = {i: piece for piece, i in vocab.items()}
    special = {special_tokens.pad_id, special_tokens.eos_id, special_tokens.unk_id}
    added = {names[i]: i for i in special} | {
      name: i for name, i in vocab.items() if name.startswith('>>') and name.endswith('<<')
    }
    super().__init__(model, special_tokens, added)

  def __reduce__(self):
    return type(self), (self._model, self._other, self.special_tokens, self._vocab)

  @functools.cached_property
  def _pieces(self):
    names = {i: piece for piece, i in self._vocab.items()}
    return [names.get(i, '') for i in range(max(names) + 1)]

  def _ids(self, encoding):
    return [self._vocab.get(piece, self.unk_id) for piece in encoding['pieces']]

  @functools.cached_property
  def target(self):
    """The tokenizer of the second language, with the same ids."""
    return MarianTokenizer(self._other, self._model, self.special_tokens, self._vocab)

  def decode(self, ids):
    """Returns the joined pieces, with U+2581 as space; skips special ids, including unk."""
    pieces = [self._pieces[i] for i in self._text_ids(ids) if i != self.unk_id]
    return self._processor.decode_pieces(pieces).replace(SPACE, ' ').strip()

  def files(self):
    """Returns both models, and tokenizer.json with the vocabulary and the special tokens."""
    description = self._description(
      known=dataclasses.asdict(self.special_tokens), vocab=self._vocab
    )
    return {
      'tokenizer.json': description,
      'sentencepiece.model': self._model,
      'other.model': self._other,
    }

  @classmethod
  def load(cls, folder, saved):
    model, other = (
      sentencepiece_model(folder / f'{name}.model') for name in ('sentencepiece', 'other')
    )
    vocab = distinct_ids(saved['vocab'], str(folder))
    return cls(model, other, SpecialTokens.read(saved['known']), vocab)

  def hub_files(self):
    """Returns both models, vocab.json, and tokenizer_config.json with the tokenizer class."""
    return {
      'source.spm': self._model,
      'target.spm': self._other,
      'vocab.json': json.dumps(self._vocab, ensure_ascii=False).encode(),
      'tokenizer_config.json': json.dumps({'tokenizer_class': 'MarianTokenizer'}).encode(),
    }


def spiece(folder: TokenizerFolder) -> Tokenizer:
  """Reads spiece.model: ALBERT's tokenizer if it has a piece [CLS], else T5's or SigLIP's.

  Raises:
    Unsupported: the model has neither [CLS] nor </s>.
  """
  import sentencepiece

  model = sentencepiece_model(folder.path / 'spiece.model')
  processor = sentencepiece.SentencePieceProcessor(model_proto=model)
  pieces = [processor.id_to_piece(i) for i in range(processor.vocab_size())]
  vocab = {piece: i for i, piece in enumerate(pieces)}
  settings = folder.tokenizer
  if '[CLS]' in vocab:
    template: Template = ((vocab['[CLS]'], 0), ('A', 0), (vocab['[SEP]'], 0))
    tokens = folder.special_tokens(vocab.get, template, (*template, ('B', 1), (vocab['[SEP]'], 1)))
    fold = Fold(settings['do_lower_case'], not settings['keep_accents'])
    names = ('<pad>', '<unk>', '[CLS]', '[SEP]', '[MASK]')
    return SpieceTokenizer(model, tokens, {n: vocab[n] for n in names if n in vocab}, fold)
  if '</s>' not in vocab:
    raise Unsupported(
      f'{folder.path}/spiece.model is not supported: it must have a piece </s> (T5) or [CLS] (ALBERT)'
    )
  # SigLIP's has no sentinels, and reads texts without punctuation.
  plain = settings['tokenizer_class'] == WITHOUT_PUNCTUATION
  folded = Fold(lower=settings['do_lower_case'], punctuation=True) if plain else None
  extra = [f'<extra_id_{i}>' for i in reversed(range(0 if plain else settings['extra_ids']))]
  added = {name: len(pieces) + i for i, name in enumerate(extra) if name not in vocab}
  added |= {piece: i for i, piece in enumerate(pieces) if piece.startswith('<extra_id_')}
  added |= {name: vocab[name] for name in ('<pad>', '</s>', '<unk>') if name in vocab}
  eos = vocab['</s>']
  single: Template = (('A', 0), (eos, 0))
  tokens = folder.special_tokens(vocab.get, single, (*single, ('B', 0), (eos, 0)))
  if folder.decoder_start is None:
    tokens = dataclasses.replace(tokens, start_id=tokens.pad_id)
  return SpieceTokenizer(model, tokens, added, folded)


def marian(folder: TokenizerFolder) -> Tokenizer:
  """Reads source.spm, target.spm and vocab.json; returns the tokenizer of the source language.

  Raises:
    Unsupported: the languages have separate vocabularies.
  """
  if folder.tokenizer['separate_vocabs']:
    raise Unsupported(
      f'{folder.path}: separate vocabularies for source and target are not supported '
      '(separate_vocabs in tokenizer_config.json)'
    )
  vocab = vocabulary(folder.path / 'vocab.json')
  eos = vocab['</s>']
  tokens = folder.special_tokens(vocab.get, (('A', 0), (eos, 0)), (('A', 0), ('B', 1), (eos, 1)))
  if folder.decoder_start is None:
    tokens = dataclasses.replace(tokens, start_id=tokens.pad_id)
  source, target = (
    sentencepiece_model(folder.path / f'{name}.spm') for name in ('source', 'target')
  )
  return MarianTokenizer(source, target, tokens, vocab)
