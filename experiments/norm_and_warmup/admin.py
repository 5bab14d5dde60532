"""Measures the initial factors of Admin's shortcuts for a config, as the paper does before training.

    python experiments/norm_and_warmup/admin.py experiments/norm_and_warmup/{base,deep/admin}.gin num_layers=12

Prints Admin.omega for a language model: the factor of branch i is the root of the variance of the shortcut and of the
sublayer's output of branch i - 1, over one training batch, and 1 for the first branch (Liu et al. 2020,
https://arxiv.org/abs/2004.08249, section 4). The layers use the factors that are already measured.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np

from t2x.base.errors import UserError
from t2x.data import Batches
from t2x.experiments import read_config
from t2x.layers import Admin, Call, Result, initialized


def measured_omega(model, ids, tokens) -> list[float]:
  """Returns the factor of each residual branch, in the order of application.

  Args:
    model: a LanguageModel whose blocks have the wiring Admin.
    ids: token ids [batch, length].
    tokens: metadata of the tokens.
  """
  body = model.body
  x, tokens = model.embedding(ids, tokens)
  x = body.encoding.embed(x, tokens)
  x = x if body.input_norm is None else body.input_norm(x)
  call = Call(tokens, body.pattern, body.encoding if body.encoding.acts_in_layers else None)
  omega = [1.0]
  for layer in body.stack.unstacked().layers:
    for name, own in layer.calls(call).items():
      wiring = vars(layer)[f'{name}_wiring']
      if not isinstance(wiring, Admin):
        raise UserError(f'Block.wiring is {type(wiring).__name__}: set it to @Admin')
      wiring.omega[...] = jnp.full_like(wiring.omega[...], omega[-1])
      y = vars(layer)[name](x, own).x
      omega.append(float(jnp.sqrt(omega[-1] ** 2 * x.var() + y.var())))
      x = wiring(x, lambda h, y=y: Result(y)).x
  return omega[:-1]


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('files', nargs='+', help='gin files, then bindings NAME=VALUE')
  names = parser.parse_args().files
  files, bindings = ([n for n in names if ('=' in n) is kind] for kind in (False, True))
  build, task, trainer = read_config(files, bindings).build().complete()
  task = task.bound(task.fit_tokenizer())
  rows = task.rows(task.train_split)
  batch = Batches(rows, None, batch_size=trainer.batch_size, seed=trainer.seed)[0]
  model = initialized(build, jax.random.key(trainer.seed))
  omega = measured_omega(model, jnp.asarray(batch['tokens']), task.row_tokens(batch))
  print('Admin.omega =', np.round(omega, 3).tolist())


if __name__ == '__main__':
  main()
