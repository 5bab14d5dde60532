"""Pictures of emoji with their names in Unicode's CLDR."""

import dataclasses
import io
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from t2x.base.errors import UserError
from t2x.base.packages import imported
from t2x.base.ranges import Size, Text
from t2x.data.sources.base import ClassSource, Example
from t2x.data.sources.held_out import split_of
from t2x.samples.fetched import Fetched, Sample

__all__ = ['Emoji']

# Split -> its buckets of 100, by a hash of the base of an emoji.
SPLITS = {'train': range(80), 'validation': range(80, 90), 'test': range(90, 100)}
GROUPS = (
  *('Smileys & Emotion', 'People & Body', 'Animals & Nature', 'Food & Drink', 'Travel & Places'),
  *('Activities', 'Objects', 'Symbols', 'Flags'),
)
# Increment when the same files give other examples.
VERSION = 2

# Skin tones, and the signs of genders after a zero-width joiner.
TONE, GENDER = re.compile('[\U0001f3fb-\U0001f3ff]'), re.compile('\u200d[\u2640\u2642]')
MAN, WOMAN, PERSON = '\U0001f468', '\U0001f469', '\U0001f9d1'
# Persons and children joined: a family. Then one character for a gender, or for persons joined, and its neutral form.
FAMILY = re.compile('[\U0001f9d1\U0001f9d2](\u200d[\U0001f9d1\U0001f9d2])+')
NEUTRAL = {
  '👦': '🧒', '👧': '🧒', '👴': '🧓', '👵': '🧓', '🤴': '🫅', '👸': '🫅', '🤰': '🫄', '🫃': '🫄',
  '🎅': '🧑\u200d🎄', '🤶': '🧑\u200d🎄', '🕺': '💃', '👫': '🧑\u200d🤝\u200d🧑', '👬': '🧑\u200d🤝\u200d🧑',
  '👭': '🧑\u200d🤝\u200d🧑', '💑': '🧑\u200d❤\u200d🧑', '💏': '🧑\u200d❤\u200d💋\u200d🧑', '🫱\u200d🫲': '🤝',
}  # fmt: skip
# Requests an emoji instead of a sign of text. CLDR and the font leave it out.
VARIANT = '\ufe0f'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Emoji(Fetched, Sample, ClassSource):
  """3,624 emoji of Noto (OFL) with their names in CLDR: `source` uint8 [size, size, 3] on white, `target`, such as
  'grinning face', `label`, the number of their group ('Food & Drink'), and `emoji`, the characters.

  A hash of its base, which has no skin tone and no gender, assigns an emoji to train (80 %), validation (10 %) or test
  (10 %): no split has a variant of an emoji of another split. Families have one base, and emoji with equal pictures,
  such as the flags of Norway and Svalbard, that of the first.

  Attributes:
    folder: folder of the unpacked packages; None: the folder of `t2x data fetch emoji`.
    size: side of the images in pixels.
    language: code of the language of the names in CLDR.
    skin_tones: whether emoji with skin tones are examples, too.
    keywords: whether the keywords of an emoji follow its name: 'grinning face: face, grin'.
  """

  packages = ('fontTools',)

  size: Size = 32
  language: Text = 'en'
  skin_tones: bool = True
  keywords: bool = False

  data_set = 'emoji'
  split_names = tuple(SPLITS)

  def class_names(self) -> tuple[str, ...]:
    """Returns the names of the groups."""
    return GROUPS

  def settings(self):
    return VERSION, self.size, self.language, self.skin_tones, self.keywords

  def data_files(self) -> list[Path]:
    """Returns the font, the names, the derived names and the list of groups."""
    share = self.root / 'usr/share'
    names = [
      share / 'unicode/cldr/common' / folder / f'{self.language}.xml'
      for folder in ('annotations', 'annotationsDerived')
    ]
    font = share / 'fonts/truetype/noto/NotoColorEmoji.ttf'
    files = [font, *names, share / 'unicode/emoji/emoji-test.txt']
    for file in files:
      if not file.exists():
        known = sorted(path.stem for path in file.parent.glob('*.xml'))
        if known:
          raise UserError(
            f"Emoji.language = '{self.language}': {file.parent} has {', '.join(known)}"
          )
        raise UserError(f'no {file}: {self.how_to_get}')
    return files

  def examples(self, split: str) -> Iterator[Example]:
    font, *names, groups = self.data_files()
    texts = dict(pair for file in names for pair in _texts(file, self.keywords))
    pictures = _pictures(font)
    bases: dict[bytes, str] = {}
    for emoji, group in _groups(groups).items():
      png = pictures(emoji)
      if png is None or emoji not in texts:
        continue
      base = bases.setdefault(png, base_of(emoji))
      skipped = TONE.search(emoji) and not self.skin_tones
      if not skipped and split_of(base, SPLITS) == split:
        image = _on_white(png, self.size)
        label = GROUPS.index(group)
        yield {'source': image, 'target': texts[emoji], 'label': label, 'emoji': emoji}


def base_of(emoji: str) -> str:
  """Returns an emoji without its skin tones and genders; '👪' for all families."""
  neutral = GENDER.sub('', TONE.sub('', emoji).replace(VARIANT, ''))
  neutral = neutral.replace(MAN, PERSON).replace(WOMAN, PERSON)
  if FAMILY.fullmatch(neutral.replace('👦', '🧒').replace('👧', '🧒')):
    return '👪'
  return NEUTRAL.get(neutral, neutral)


def _texts(path: Path, keywords: bool) -> Iterator[tuple[str, str]]:
  """Yields the emoji of a file of CLDR and their texts."""
  names: dict[str, str] = {}
  words: dict[str, str] = {}
  try:
    for annotation in ElementTree.parse(path).iter('annotation'):
      one = names if annotation.get('type') == 'tts' else words
      one[annotation.get('cp', '')] = (annotation.text or '').strip()
  except ElementTree.ParseError as error:
    raise UserError(f'{path} cannot be read: {error}') from error
  for emoji, name in names.items():
    # The name is among the keywords.
    further = [word.strip() for word in words.get(emoji, '').split('|')] if keywords else []
    further = [word for word in further if word and word != name]
    yield emoji, f'{name}: {", ".join(further)}' if further else name


def _groups(path: Path) -> dict[str, str]:
  """Returns the group of each emoji, in the order of the file."""
  groups, group = {}, ''
  for line in path.read_text('utf-8').splitlines():
    if line.startswith('# group: '):
      group = line.removeprefix('# group: ')
    elif line and not line.startswith('#') and group in GROUPS:
      codes = line.split(';')[0].split()
      groups[''.join(chr(int(code, 16)) for code in codes).replace(VARIANT, '')] = group
  return groups


def _pictures(path: Path) -> Any:
  """Returns a function from an emoji to its PNG in a font with bitmaps; None if the font lacks it."""
  font = imported('fontTools.ttLib', 'Emoji').TTFont(path, lazy=True)
  glyphs: Mapping[int, str] = font.getBestCmap()
  [bitmaps] = font['CBDT'].strikeData
  ligatures = {
    (first, *ligature.Component): ligature.LigGlyph
    for lookup in font['GSUB'].table.LookupList.Lookup
    for table in lookup.SubTable
    for first, several in getattr(table, 'ligatures', {}).items()
    for ligature in several
  }

  def picture(emoji: str) -> bytes | None:
    names = tuple(glyphs.get(ord(character), '') for character in emoji)
    name = names[0] if len(names) == 1 else ligatures.get(names, '')
    return bitmaps[name].imageData if name in bitmaps else None

  return picture


def _on_white(png: bytes, size: int) -> np.ndarray:
  """Decodes a picture on white, as a square of `size` pixels."""
  from PIL import Image

  with Image.open(io.BytesIO(png)) as file:
    picture = file.convert('RGBA')
  side = max(picture.size)
  square = Image.new('RGBA', (side, side), 'white')
  corner = (side - picture.width) // 2, (side - picture.height) // 2
  square.alpha_composite(picture, corner)
  resized = square.convert('RGB').resize((size, size), Image.Resampling.BICUBIC)
  return np.asarray(resized)
