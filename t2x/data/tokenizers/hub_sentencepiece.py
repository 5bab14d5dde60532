"""SentencePiece models of other people's folders: T5 (https://arxiv.org/abs/1910.10683), ALBERT
(https://arxiv.org/abs/1909.11942) and Marian (https://arxiv.org/abs/1804.00344)."""

import dataclasses
import functools
import json
import operator
import re
import unicodedata
from collections.abc import Mapping, Sequence

import sentencepiece

from t2x.data.tokenizers.base import Template, Tokenizer, located
from t2x.data.tokenizers.hub_limits import Vocabulary, sentencepiece_model, vocabulary
from t2x.data.tokenizers.sentencepiece import SPACE, shared
from t2x.data.tokenizers.special_tokens import Folder, Known, Unsupported
from t2x.data.tokenizers.word_starts import Words
from t2x.external_files import REQUIRED, Bool, Fields, Object

Spans = Sequence[tuple[int, int]]
# What a run folder keeps.
SAVED = {'added': Vocabulary(REQUIRED), 'fold': Object(None), 'known': Object(REQUIRED)}
SAVED_PAIR = {'known': Object(REQUIRED), 'vocab': Vocabulary(REQUIRED)}
FOLD = {'lower': Bool(REQUIRED), 'strip': Bool(REQUIRED)}


@dataclasses.dataclass(frozen=True)
class Fold:
  """What ALBERT does to a text before SentencePiece sees it: `` and '' become double quotes, and so on.

  Attributes:
    lower: letters become small.
    strip: characters are decomposed and lose their accents.
  """

  lower: bool = False
  strip: bool = False

  def __call__(self, text: str) -> tuple[str, list[tuple[int, int]]]:
    """The text, and where each of its characters stood before."""
    folded: list[str] = []
    spans: list[tuple[int, int]] = []
    for match in re.finditer("``|''|.", text, re.DOTALL):
      part = '"' if len(match[0]) > 1 else match[0]
      if self.strip:
        decomposed = unicodedata.normalize('NFKD', part)
        part = ''.join(c for c in decomposed if unicodedata.category(c) != 'Mn')
      if self.lower:
        part = ''.join(character.lower() for character in part)
      folded += part
      spans += [match.span()] * len(part)
    return ''.join(folded), spans


class SpieceTokenizer(Tokenizer):
  """A SentencePiece model with special ids of its own."""

  kind = 'spiece'

  def __init__(
    self, model: bytes, known: Known, added: Mapping[str, int], fold: Fold | None = None
  ):
    """
    Args:
      model: as SentencePiece writes it.
      known: its special ids.
      added: special tokens that a text may spell out, and their ids.
      fold: what is done to a text before.
    """
    self._model, self.known, self._added, self._fold = model, known, dict(added), fold
    known.tell(self)
    self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    self._pieces = self._listed()
    self.vocab_size = len(self._pieces)
    names = sorted(added, key=len, reverse=True)
    self._spelt = re.compile('|'.join(map(re.escape, names)) or r'\b\B')

  def __reduce__(self):
    return type(self), (self._model, self.known, self._added, self._fold)

  def _listed(self) -> list[str]:
    """The pieces by id."""
    pieces = [self._processor.id_to_piece(i) for i in range(self._processor.vocab_size())]
    added = {i: piece for piece, i in self._added.items()}
    return pieces + [added[i] for i in range(len(pieces), max(added, default=0) + 1)]

  def _cut(self, text: str) -> tuple[list[int], Spans]:
    """The ids of a text that spells no special token, and their spans."""
    found = self._processor.encode(text, return_type='offset_mapping')
    return found['ids'], shared(found['pieces'], found['offsets'])

  def encode(self, text):
    """Ids; what is spelt as a special token is one."""
    return self.locate(text).ids.tolist()

  def locate(self, text):
    """The bytes of a character have that character as their span."""
    ids: list[int] = []
    spans: list[tuple[int, int]] = []
    start = 0
    for match in [*self._spelt.finditer(text), None]:
      stop = match.start() if match else len(text)
      found, offsets = self._folded(text[start:stop])
      ids += found
      spans += [(start + begin, start + end) for begin, end in offsets]
      if match:
        ids.append(self._added[match[0]])
        spans.append(match.span())
        start = match.end()
    return located(text, ids, spans)

  def _folded(self, text: str) -> tuple[list[int], Spans]:
    if self._fold is None:
      return self._cut(text)
    folded, places = self._fold(text)
    ids, spans = self._cut(folded)
    starts = [start for start, _ in places] + [len(text)]
    stops = [0] + [stop for _, stop in places]
    return ids, [(starts[b], stops[e] if e > b else starts[b]) for b, e in spans]

  def decode(self, ids):
    """Text as SentencePiece joins it; special tokens, unk among them, are left out."""
    return self._processor.decode([i for i in self._kept(ids) if i != self.unk_id])

  def pieces(self, ids):
    """SentencePiece's pieces: the space is U+2581."""
    known = self._pieces
    return [known[i] if 0 <= i < len(known) else '<none>' for i in map(operator.index, ids)]

  @functools.cached_property
  def special(self):
    """Those that a text may spell out as well."""
    found = super().special
    # But Marian's language codes, which a text begins with.
    found[[i for name, i in self._added.items() if not name.startswith('>>')]] = True
    return found

  @functools.cached_property
  def _words(self) -> Words:
    return Words.of([piece.replace(SPACE, ' ') for piece in self._pieces], self.special)

  def word_starts(self, ids):
    """Pieces that begin with white space."""
    return self._words.starts(ids)

  def files(self):
    """The model as SentencePiece writes it, and what else there is to know."""
    fold = self._fold and dataclasses.asdict(self._fold)
    known = dataclasses.asdict(self.known)
    described = self._described(known=known, added=self._added, fold=fold)
    return {'tokenizer.json': described, 'sentencepiece.model': self._model}

  @classmethod
  def load(cls, folder, known):
    """From the model's file."""
    fields = Fields(known, SAVED, str(folder))
    model = sentencepiece_model(folder / 'sentencepiece.model')
    fold = None if fields['fold'] is None else Fold(**Fields(fields['fold'], FOLD, str(folder)))
    return cls(model, Known.read(fields['known'], str(folder)), fields['added'], fold)

  def hub_files(self):
    """spiece.model, and the class that reads it."""
    config: dict[str, object] = {'tokenizer_class': 'T5Tokenizer'}
    if self._fold is None:
      config['extra_ids'] = self.vocab_size - self._processor.vocab_size()
    else:
      config = {'tokenizer_class': 'AlbertTokenizer', 'do_lower_case': self._fold.lower}
      config['keep_accents'] = not self._fold.strip
    return {'spiece.model': self._model, 'tokenizer_config.json': json.dumps(config).encode()}


class MarianTokenizer(SpieceTokenizer):
  """Two SentencePiece models, of the source's language and the target's, whose pieces share ids."""

  kind = 'marian'

  def __init__(self, model: bytes, other: bytes, known: Known, vocab: Mapping[str, int]):
    """
    Args:
      model: the model of the language that is encoded.
      other: that of the other one.
      known: the special ids.
      vocab: piece -> id.
    """
    self._other, self._vocab = other, dict(vocab)
    names = {i: piece for piece, i in vocab.items()}
    special = {known.pad_id, known.eos_id, known.unk_id}
    added = {names[i]: i for i in special} | {
      name: i for name, i in vocab.items() if name.startswith('>>') and name.endswith('<<')
    }
    super().__init__(model, known, added)

  def __reduce__(self):
    return type(self), (self._model, self._other, self.known, self._vocab)

  def _listed(self):
    pieces = [''] * (max(self._vocab.values()) + 1)
    for piece, i in self._vocab.items():
      pieces[i] = piece
    return pieces

  def _cut(self, text):
    found = self._processor.encode(text, return_type='offset_mapping')
    ids = [self._vocab.get(piece, self.unk_id) for piece in found['pieces']]
    return ids, shared(found['pieces'], found['offsets'])

  @functools.cached_property
  def target(self):
    """The same ids, cut by the other model."""
    return MarianTokenizer(self._other, self._model, self.known, self._vocab)

  def decode(self, ids):
    """The pieces joined, spaces as spaces."""
    kept = [self._pieces[i] for i in self._kept(ids) if i != self.unk_id]
    return self._processor.decode_pieces(kept).replace(SPACE, ' ').strip()

  def files(self):
    """Both models and the vocabulary."""
    described = self._described(known=dataclasses.asdict(self.known), vocab=self._vocab)
    return {
      'tokenizer.json': described,
      'sentencepiece.model': self._model,
      'other.model': self._other,
    }

  @classmethod
  def load(cls, folder, known):
    """From both models' files."""
    fields = Fields(known, SAVED_PAIR, str(folder))
    model, other = (
      sentencepiece_model(folder / f'{name}.model') for name in ('sentencepiece', 'other')
    )
    return cls(model, other, Known.read(fields['known'], str(folder)), fields['vocab'])

  def hub_files(self):
    """Both models as they are, and the vocabulary."""
    return {
      'source.spm': self._model,
      'target.spm': self._other,
      'vocab.json': json.dumps(self._vocab, ensure_ascii=False).encode(),
      'tokenizer_config.json': json.dumps({'tokenizer_class': 'MarianTokenizer'}).encode(),
    }


def spiece(folder: Folder) -> Tokenizer:
  """T5, or ALBERT where the model has a piece [CLS]."""
  model = sentencepiece_model(folder.path / 'spiece.model')
  processor = sentencepiece.SentencePieceProcessor(model_proto=model)
  pieces = [processor.id_to_piece(i) for i in range(processor.vocab_size())]
  vocab = {piece: i for i, piece in enumerate(pieces)}
  said = folder.tokenizer
  if '[CLS]' in vocab:
    around: Template = ((vocab['[CLS]'], 0), ('A', 0), (vocab['[SEP]'], 0))
    known = folder.known(vocab.get, around, (*around, ('B', 1), (vocab['[SEP]'], 1)))
    fold = Fold(said['do_lower_case'], not said['keep_accents'])
    names = ('<pad>', '<unk>', '[CLS]', '[SEP]', '[MASK]')
    return SpieceTokenizer(model, known, {n: vocab[n] for n in names if n in vocab}, fold)
  if '</s>' not in vocab:
    raise Unsupported(
      f'{folder.path}/spiece.model: neither T5 nor ALBERT: it has no </s> and no [CLS]'
    )
  extra = [f'<extra_id_{i}>' for i in reversed(range(said['extra_ids']))]
  added = {name: len(pieces) + i for i, name in enumerate(extra) if name not in vocab}
  added |= {piece: i for i, piece in enumerate(pieces) if piece.startswith('<extra_id_')}
  added |= {name: vocab[name] for name in ('<pad>', '</s>', '<unk>') if name in vocab}
  eos = vocab['</s>']
  single: Template = (('A', 0), (eos, 0))
  known = folder.known(vocab.get, single, (*single, ('B', 0), (eos, 0)))
  if folder.decoder_start is None:
    known = dataclasses.replace(known, start_id=known.pad_id)
  return SpieceTokenizer(model, known, added)


def marian(folder: Folder) -> Tokenizer:
  """The source's tokenizer; its `target` is that of the target."""
  if folder.tokenizer['separate_vocabs']:
    raise Unsupported(
      f'{folder.path}: source and target have vocabularies of their own: not read here'
    )
  vocab = vocabulary(folder.path / 'vocab.json')
  eos = vocab['</s>']
  known = folder.known(vocab.get, (('A', 0), (eos, 0)), (('A', 0), ('B', 1), (eos, 1)))
  if folder.decoder_start is None:
    known = dataclasses.replace(known, start_id=known.pad_id)
  source, target = (
    sentencepiece_model(folder.path / f'{name}.spm') for name in ('source', 'target')
  )
  return MarianTokenizer(source, target, known, vocab)
