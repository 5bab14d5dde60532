"""A layout for tests of what layers do where axes are split, without devices."""

import types


class Halved:
  """Splits logical axes over two devices, without moving anything; without names, all axes."""

  mesh = types.SimpleNamespace(size=2)

  def __init__(self, *axes):
    self.axes = axes

  def constrain(self, x, axes):
    return x

  def num_parts(self, axis):
    return 2 if axis in self.axes or not self.axes else 1

  def mesh_axes(self, axis):
    return ('context',) if self.num_parts(axis) > 1 else ()

  def map_shards(self, function, in_axes, out_axes):
    return function
