"""Emoji of a folder in the layout of the published packages, with a font in memory."""

import io
from types import SimpleNamespace

import fontTools.ttLib
import numpy as np
import pytest
from PIL import Image

from t2x.base.errors import UserError
from t2x.data.sources.held_out import split_of
from t2x.samples import Emoji
from t2x.samples.emoji import SPLITS, base_of

NAMES = {
  '👍': 'thumbs up',
  '👍🏽': 'thumbs up: medium skin tone',
  '🏃‍♀': 'woman running',
  '🍕': 'pizza',
  '🏽': 'medium skin tone',
  '🇲🇫': 'flag: St. Martin',
  '🇫🇷': 'flag: France',
}
GROUPS = """# group: People & Body
1F44D                ; fully-qualified # E0.6 thumbs up
1F44D 1F3FD          ; fully-qualified # E1.0 thumbs up: medium skin tone
1F3C3 200D 2640 FE0F ; fully-qualified # E4.0 woman running

# group: Component
1F3FD                ; component # E1.0 medium skin tone
# group: Food & Drink
1F355                ; fully-qualified # E0.6 pizza
1F354                ; fully-qualified # E0.6 hamburger
# group: Flags
1F1F2 1F1EB          ; fully-qualified # E2.0 flag: St. Martin
1F1EB 1F1F7          ; fully-qualified # E0.6 flag: France
"""


def picture(shade):
  """A PNG that is wider than high, of one shade, whose left half is transparent."""
  image = Image.new('RGBA', (8, 4), (shade, shade, shade, 255))
  image.paste((0, 0, 0, 0), (0, 0, 4, 4))
  file = io.BytesIO()
  image.save(file, 'PNG')
  return SimpleNamespace(imageData=file.getvalue())


@pytest.fixture
def packages(tmp_path, monkeypatch):
  """The folder; glyphs of the font are named by their characters, and sequences are ligatures."""
  share = tmp_path / 'usr/share'
  for name in ('annotations', 'annotationsDerived'):
    (share / 'unicode/cldr/common' / name).mkdir(parents=True)
    derived = name == 'annotationsDerived'
    lines = [
      f'<annotation cp="{emoji}" type="tts">{text}</annotation>'
      for emoji, text in NAMES.items()
      if (len(emoji) > 1) == derived
    ]
    if not derived:
      lines.append('<annotation cp="🍕">cheese | pizza | slice</annotation>')
    xml = f'<ldml><annotations>{"".join(lines)}</annotations></ldml>'
    (share / 'unicode/cldr/common' / name / 'en.xml').write_text(xml)
  for path, text in (('emoji/emoji-test.txt', GROUPS), ('../fonts/truetype/noto', '')):
    target = share / 'unicode' / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text) if text else target.mkdir()
  (share / 'fonts/truetype/noto/NotoColorEmoji.ttf').write_bytes(b'font')
  characters = {c for emoji in NAMES for c in emoji}
  ligatures = {}
  for emoji in (emoji for emoji in NAMES if len(emoji) > 1):
    ligature = SimpleNamespace(Component=list(emoji[1:]), LigGlyph=emoji)
    ligatures.setdefault(emoji[0], []).append(ligature)
  table = SimpleNamespace(ligatures=ligatures)
  lookups = SimpleNamespace(Lookup=[SimpleNamespace(SubTable=[SimpleNamespace(), table])])
  tables = {
    # The flags are equal.
    'CBDT': SimpleNamespace(strikeData=[{e: picture(40 * min(i, 5)) for i, e in enumerate(NAMES)}]),
    'GSUB': SimpleNamespace(table=SimpleNamespace(LookupList=lookups)),
  }

  class Font(dict):
    def getBestCmap(self):
      return {ord(c): c for c in characters}

  monkeypatch.setattr(fontTools.ttLib, 'TTFont', lambda path, lazy: Font(tables))
  return tmp_path


def everything(source):
  return {e['emoji']: (split, e) for split in source.splits() for e in source.load(split)}


def test_emoji_have_names_groups_and_pictures_on_white(packages):
  found = everything(Emoji(folder=str(packages), size=8))
  assert {emoji: e['target'] for emoji, (_, e) in found.items()} == {
    emoji: name for emoji, name in NAMES.items() if emoji != '🏽'
  }
  labels = {e['target']: Emoji().class_names()[e['label']] for _, e in found.values()}
  assert labels['pizza'] == 'Food & Drink'
  assert labels['woman running'] == 'People & Body'
  pizza = found['🍕'][1]['source']
  assert (pizza.shape, pizza.dtype) == ((8, 8, 3), np.uint8)
  # A square around the picture.
  assert pizza[0].min() == pizza[-1].min() == pizza[:, :4].min() == 255
  assert pizza[4, 6].tolist() == [120, 120, 120]


def test_variants_of_an_emoji_are_in_one_split(packages):
  found = everything(Emoji(folder=str(packages)))
  assert found['👍'][0] == found['👍🏽'][0]
  assert base_of('🏃🏽‍♀️') == base_of('🏃') == '🏃'
  assert base_of('👩🏿‍🚀') == base_of('👨‍🚀') == base_of('🧑‍🚀')


@pytest.mark.parametrize(
  'variants',
  [
    ['👫', '👬🏽', '👭', '🧑‍🤝‍🧑', '👩🏻‍🤝‍👨🏿'],
    ['💑', '👩‍❤️‍👨', '🧑🏻‍❤️‍🧑🏿'],
    ['💏', '👨‍❤️‍💋‍👨', '🧑🏻‍❤️‍💋‍🧑🏿'],
    ['👪', '👨‍👩‍👧', '👩‍👦‍👦', '🧑‍🧑‍🧒', '👨‍👨‍👧‍👦'],
    ['🎅', '🤶🏿', '🧑‍🎄'],
    ['🤝', '🤝🏽', '🫱🏻‍🫲🏿'],
  ],
)
def test_persons_that_are_joined_have_one_base(variants):
  assert len(set(map(base_of, variants))) == 1
  assert base_of('🧑') not in map(base_of, variants)


def test_emoji_with_equal_pictures_are_in_one_split(packages):
  assert split_of('🇲🇫', SPLITS) != split_of('🇫🇷', SPLITS)
  found = everything(Emoji(folder=str(packages)))
  assert found['🇲🇫'][0] == found['🇫🇷'][0]


def test_skin_tones_and_keywords_are_settings(packages):
  plain = everything(Emoji(folder=str(packages), skin_tones=False))
  assert plain.keys() == NAMES.keys() - {'👍🏽', '🏽'}
  words = everything(Emoji(folder=str(packages), keywords=True))
  assert words['🍕'][1]['target'] == 'pizza: cheese, slice'
  assert words['👍'][1]['target'] == 'thumbs up'
  sources = [Emoji(folder=str(packages), **s) for s in ({}, {'keywords': True}, {'size': 16})]
  assert len({source.fingerprint() for source in sources}) == 3


def test_other_languages_and_missing_packages_are_named(packages, tmp_path):
  with pytest.raises(UserError, match=r"Emoji.language = 'xx': .*annotations has en$"):
    Emoji(folder=str(packages), language='xx').load('train')
  with pytest.raises(UserError, match=r'NotoColorEmoji.ttf: run `t2x data fetch emoji --out'):
    Emoji(folder=str(tmp_path / 'none')).load('train')
