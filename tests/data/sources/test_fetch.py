"""Fetching with apt-get and dpkg, here stand-ins of a few lines."""

import pytest

from t2x.data.fetch import available, fetch

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
  assert 'holds something else' in message(fetch, 'libreoffice_help', out)


def test_a_failure_leaves_nothing_and_tells_the_last_words(programs, cache, message):
  programs(apt_get=APT_GET.format(more='echo W: hm >&2; echo E: no such package >&2; exit 100'))
  said = message(fetch, 'fashion_mnist')
  assert 'E: no such package' in said
  assert 'apt-get update' in said
  assert not (cache / 'downloads' / 'fashion_mnist').exists()
  programs(apt_get=APT_GET.format(more=''), dpkg='#!/bin/sh\nmkdir "$3/usr"; exit 2\n')
  assert '`dpkg -x` failed' in message(fetch, 'fashion_mnist')
  assert not (cache / 'downloads' / 'fashion_mnist').exists()


def test_without_apt_one_is_told_what_to_do(tmp_path, monkeypatch, message):
  monkeypatch.setenv('PATH', str(tmp_path))
  said = message(fetch, 'libreoffice_help', tmp_path / 'out')
  assert 'libreoffice-help-de' in said
  assert 'dpkg -x' in said


def test_names(message):
  assert available() == ('fashion_mnist', 'libreoffice_help')
  assert 'there are fashion_mnist, libreoffice_help' in message(fetch, 'mnist')
