"""The teacher of a distillation. Its parameters are frozen, loaded once, and saved in the run folder."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
from flax import nnx

from t2x.base.errors import UserError
from t2x.data import load_tokenizer
from t2x.train.mup import check_same
from t2x.train.params import TEACHER, Blueprint, Params

if TYPE_CHECKING:
  from t2x.train.experiment import Teacher


class FrozenTeacher:
  """Parameters of the teacher among the frozen parameters of a run, with names `teacher.NAME`.

  Args:
    teacher: the teacher of the experiment.

  Attributes:
    blueprint: shapes of the model and metadata of its parameters.
    infos: metadata by `teacher.NAME`.
  """

  def __init__(self, teacher: 'Teacher'):
    self.teacher = teacher
    self.blueprint = Blueprint(jax.eval_shape(lambda: teacher.model(rngs=nnx.Rngs(0))))
    self.infos = {
      TEACHER + name: dataclasses.replace(info, name=TEACHER + name)
      for name, info in self.blueprint.infos.items()
    }

  def abstract(self) -> Params:
    """Shapes of the parameters by `teacher.NAME`."""
    shapes = self.blueprint.params(self.blueprint.shapes)
    return {TEACHER + name: shape for name, shape in shapes.items()}

  def model(self, frozen: Mapping[str, Any], dtype: str | None = None) -> Any:
    """Returns the model with its parameters in `frozen`, cast to `dtype` as `Blueprint.model` does."""
    return self.blueprint.model(
      {name: frozen[TEACHER + name] for name in self.blueprint.infos}, dtype
    )

  def plan(
    self, frozen: Mapping[str, Any], tokenizer: Any = None
  ) -> tuple[Callable[[], Params], str]:
    """Plans the loading of the teacher's parameters.

    Args:
      frozen: shapes and shardings of the frozen parameters.
      tokenizer: tokenizer of the run; None if it has none or it is not fitted yet.

    Returns:
      A function that reads the parameters, by `teacher.NAME`, and a line that describes their source.

    Raises:
      UserError: the teacher's run has another tokenizer, or lacks a parameter.
    """
    source = self.teacher.init_from
    try:
      check_same(Path(source.run), None)
      load, table = source.plan(
        {name: frozen[TEACHER + name] for name in self.blueprint.infos}, True
      )
      _check_tokenizer(Path(source.run), tokenizer)
    except UserError as error:
      raise UserError(f'Experiment.teacher: {error}', error.exit_code) from error
    return lambda: {TEACHER + name: array for name, array in load().items()}, table.splitlines()[0]


def _check_tokenizer(run: Path, tokenizer: Any) -> None:
  folder = run / 'tokenizer'
  if tokenizer is None or not folder.exists():
    return
  if load_tokenizer(folder).fingerprint != tokenizer.fingerprint:
    raise UserError(
      f'the tokenizer of {run} differs from that of this run, so its logits are of other tokens: use the '
      'same tokenizer for both'
    )
