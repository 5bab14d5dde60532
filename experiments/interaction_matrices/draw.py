"""Draws the interaction matrices of attention patterns as one PNG file and one page.

  python experiments/interaction_matrices/draw.py [GIN_FILE]

The gin file defines `patterns`, a dict of patterns by title. Rows are queries, columns are keys. The prefix is
the first quarter of the row.
"""

import argparse
from pathlib import Path

from t2x import config
from t2x.look import Look, interaction_matrix
from t2x.look.page import maps, page
from t2x.look.pictures import draw_panels

HERE = Path(__file__).parent


def main():
  parser = argparse.ArgumentParser(description='draws interaction matrices')
  parser.add_argument('config', nargs='?', default=HERE / 'patterns.gin')
  parser.add_argument('--length', type=int, default=48, help='number of tokens (default: 48)')
  parser.add_argument('--out', type=Path, default='runs/interaction_matrices', metavar='FOLDER')
  args = parser.parse_args()
  patterns = config.load(args.config, registry_modules=['t2x.layers'], root='%patterns').build()
  matrices = [
    interaction_matrix(title, pattern, args.length) for title, pattern in patterns.items()
  ]
  look = Look(matrices=tuple(matrices))
  draw_panels(maps(look), args.out / 'matrices.png')
  visible = {matrix.title: f'{matrix.share:.0%} of the pairs' for matrix in matrices}
  html = page(look, 'Interaction matrices', visible)
  (args.out / 'matrices.html').write_text(html, 'utf-8')
  print(args.out / 'matrices.png', args.out / 'matrices.html', sep='\n')


if __name__ == '__main__':
  main()
