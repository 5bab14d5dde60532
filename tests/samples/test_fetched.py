"""Sources of fetched packages, on tiny folders in the layout of the published ones."""

import io
import json
import pickle
import tarfile

import pytest

from t2x.data import Source
from t2x.data.sources.held_out import split_of
from t2x.samples import (
  BrownWords,
  FactbookSpans,
  SentimentSnippets,
  brown_tags,
  name_spans,
  parts_of_speech,
)
from t2x.samples.sentiment import FILES


@pytest.fixture
def snippets(cache):
  """`snippets(kind=lines)` writes the archive that the source distribution holds."""

  def write(**kinds):
    folder = cache / 'downloads/sentiment/vaderSentiment-3.3.2/additional_resources'
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / 'hutto_ICWSM_2014.tar.gz', 'w:gz') as archive:
      for kind, name in FILES.items():
        content = '\r\n'.join(kinds.get(kind, [])).encode()
        member = tarfile.TarInfo(f'hutto_ICWSM_2014/{name}')
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return folder / 'hutto_ICWSM_2014.tar.gz'

  return write


def everything(source):
  return {split: source.load(split) for split in source.splits()}


def test_the_sign_of_the_mean_rating_is_the_label(snippets):
  snippets(tweets=['1\t2.5\tI love  it', '2\t-0.1\tMeh', '3\t0.0\tA table', '4\t1.0\ti LOVE it'])
  found = [e for part in everything(SentimentSnippets()).values() for e in part]
  labels = {e['text']: e['label'] for e in found}
  assert labels == {'I love it': 'positive', 'Meh': 'negative'}
  wider = [e for part in everything(SentimentSnippets(neutral=0.5)).values() for e in part]
  assert [e['text'] for e in wider] == ['I love it']


def test_a_name_belongs_to_one_split_whose_share_is_its_parts_of_a_hundred():
  splits = {'train': range(60), 'test': range(60, 100)}
  found = [split_of(f'name {i}', splits) for i in range(2000)]
  assert found == [split_of(f'name {i}', splits) for i in range(2000)]
  assert found.count('train') / 2000 == pytest.approx(0.6, abs=0.04)
  # Runs and cached rows depend on it.
  assert [split_of(f'name {i}') for i in (0, 1, 6)] == ['train', 'validation', 'test']


def test_the_sentences_of_a_review_are_in_one_split(snippets):
  lines = [f'{review}_{i}\t1.0\tsentence {i} of {review}' for review in range(60) for i in range(3)]
  snippets(amazon=lines, news=['1_1\t-1.0\tall is bad'])
  found = everything(SentimentSnippets(kinds=['amazon']))
  reviews = {split: {e['name'] for e in examples} for split, examples in found.items()}
  assert sum(map(len, reviews.values())) == len(set.union(*reviews.values())) == 60
  assert all(reviews.values())
  assert sum(map(len, found.values())) == 180


def test_splits_do_not_change_between_machines():
  names = [f'movies {i}' for i in range(60)]
  held_out = [i for i, name in enumerate(names) if split_of(name) == 'test']
  assert held_out == [2, 25, 31, 33, 40, 58]


def test_damaged_snippets_are_errors(snippets, message):
  archive = snippets(tweets=['1\tno rating'])
  assert 'fetch it again' in message(SentimentSnippets().load, 'train')
  archive.write_bytes(archive.read_bytes()[:50])
  assert 'fetch it again' in message(SentimentSnippets().load, 'train')
  assert 'amazon, movies, news, tweets' in message(SentimentSnippets, kinds=['films'])


@pytest.fixture
def brown(cache):
  folder = cache / 'downloads/brown/package'
  folder.mkdir(parents=True)
  (folder / 'README').write_text('no/nn words/nns')
  for number in range(1, 41):
    text = f'\n\n\tThe/at Fulton/np-tl Jury/nn-tl said/vbd 1/2/cd {number}/cd ./.\n\n\tNo/rb ./.\n'
    (folder / f'ca{number:02}').write_text(text)
  return folder


def test_tagged_words_by_sentence(brown):
  found = everything(BrownWords())
  assert sum(map(len, found.values())) == 80
  names = [{e['name'] for e in examples} for examples in found.values()]
  assert sum(map(len, names)) == len(set.union(*names)) == 40
  first = found['train'][0]
  assert first['words'][:5] == ['The', 'Fulton', 'Jury', 'said', '1/2']
  assert first['labels'] == ['DET', 'NOUN', 'NOUN', 'VERB', 'NUM', 'NUM', '.']
  assert BrownWords(labels=name_spans).load('train')[0]['labels'][:4] == [
    'O', 'B-NAME', 'I-NAME', 'O',
  ]  # fmt: skip
  assert 'labels=name_spans' in BrownWords(labels=name_spans).describe()


def test_tags_become_simpler():
  assert brown_tags(['nn-tl-hl', 'fw-in+at-tl', '--', 'md*']) == ['nn', 'in+at', '--', 'md*']
  tags = ['ppss+bem', 'wrb', 'wdt', '``', '---hl', 'fw-nn', 'cc', 'ben', 'rp', '*', 'nil', 'zz']
  assert parts_of_speech(tags) == [
    'PRON', 'ADV', 'DET', '.', '.', 'X', 'CONJ', 'VERB', 'PRT', 'ADV', 'X', 'X',
  ]  # fmt: skip


def test_an_untagged_line_is_an_error(brown, message):
  (brown / 'ca01').write_text('\nThe/at jury\n')
  source = BrownWords()
  said = [message(source.load, split) for split in source.splits() if split_of('ca01') == split]
  assert 'ca01:2: each token must be word/tag' in said[0]


@pytest.fixture
def factbook(cache):
  folder = cache / 'downloads/factbook/package/europe'
  folder.mkdir(parents=True)
  for code in ('gm', 'fr', 'it', 'sp', 'uk', 'pl'):
    profile = {
      'Geography': {
        'Location': {'text': 'Europe'},
        'Area': {
          'total': {'text': '357,022 sq km (2014)'},
          'land': {'text': ' ++ 348,672 sq km ++ all of it'},
          'water': {'text': 'NA'},
          'map': {'text': None},
        },
      },
      'Government': {'Country name': {'conventional short form': {'text': f'Land {code}'}}},
    }
    (folder / f'{code}.json').write_text(json.dumps(profile))
  (folder.parent / 'meta').mkdir()
  (folder.parent / 'meta' / 'categories.json').write_text('[]')
  return folder


def test_answers_begin_at_their_recorded_starts(factbook):
  found = everything(FactbookSpans())
  examples = [e for part in found.values() for e in part]
  assert {e['name'] for e in examples} == {'gm', 'fr', 'it', 'sp', 'uk', 'pl'}
  for e in examples:
    assert e['context'][e['starts'][0] :].startswith(e['answers'][0])
  total, land = (e for e in examples if e['name'] == 'gm')
  assert total['question'] == 'Area of Land gm: total?'
  assert (total['answers'], land['answers']) == (['357,022 sq km'], ['348,672 sq km'])
  assert total['context'].splitlines()[1:] == ['land: 348,672 sq km; all of it', 'water: NA']


def test_a_damaged_profile_is_an_error(factbook, message):
  for path in factbook.glob('*.json'):
    path.write_text('[1')
  assert 'is not a country profile' in message(FactbookSpans().load, split_of('gm'))


@pytest.mark.parametrize('source', [SentimentSnippets(), BrownWords(), FactbookSpans()])
def test_sources_are_values_whose_errors_state_how_to_get_the_data(source, message, tmp_path):
  assert isinstance(source, Source)
  assert pickle.loads(pickle.dumps(source)) == source
  assert hash(source) == hash(pickle.loads(pickle.dumps(source)))
  assert '\n' not in source.describe()
  assert 'run `t2x data fetch ' in message(source.load, 'train')
  elsewhere = type(source)(folder=str(tmp_path / 'no'))
  said = message(elsewhere.fingerprint)
  assert f'--out {tmp_path / "no"}' in said
  assert f'set {type(source).__name__}.folder' in said
  assert "no split 'dev'" in message(source.load, 'dev')


def test_fingerprints_follow_settings_and_content(brown, snippets, factbook):
  assert BrownWords().fingerprint() != BrownWords(labels=name_spans).fingerprint()
  before = FactbookSpans().fingerprint()
  (factbook / 'gm.json').write_text('{}')
  assert FactbookSpans().fingerprint() != before
  snippets(tweets=['1\t2.5\tI love it'])
  before = SentimentSnippets().fingerprint()
  assert before != SentimentSnippets(neutral=1.0).fingerprint()
  snippets(tweets=['1\t2.5\tI hate it'])
  assert SentimentSnippets().fingerprint() != before


def test_only_a_line_feed_ends_a_line(snippets, brown):
  snippets(tweets=['1\t2.5\tone\x85two\u2028three'])
  found = [e for part in everything(SentimentSnippets()).values() for e in part]
  assert [e['text'] for e in found] == ['one two three']
  for path in brown.glob('ca*'):
    path.write_text('The/at\u2028dog/nn\x0bran/vbd\n', encoding='utf-8')
  sentences = [e['words'] for part in everything(BrownWords()).values() for e in part]
  assert sentences == [['The', 'dog', 'ran']] * 40
