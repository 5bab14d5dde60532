"""What each parameter is, as reviewed line by line in parameter_kinds.txt."""

from flax import nnx
from public_classes import public_classes

from tests.golden import parameter_kinds

# Base classes without parameters.
BASES = {'FeedForward', 'LogitHead', 'PositionEncoding'}


def test_kinds_match_the_reviewed_list():
  assert parameter_kinds.table() == parameter_kinds.FILE.read_text()


def test_every_part_is_in_the_table():
  built = {
    type(module).__name__
    for build in parameter_kinds.PARTS
    for _, module in nnx.iter_modules(parameter_kinds.shapes(build))
  }
  exported = {*public_classes(nnx.Module, abstract=True)}
  assert exported - built == BASES
