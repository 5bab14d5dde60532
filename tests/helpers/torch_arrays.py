"""Parameters of modules of PyTorch under the names and in the layouts of t2x."""


def linear(name, module, get):
  """Kernel and bias of a projection; `get` reads a parameter, or its gradient."""
  arrays = {f'{name}.kernel': get(module.weight).T}
  return arrays if module.bias is None else arrays | {f'{name}.bias': get(module.bias)}


def norm(name, module, get):
  """Scale and bias of a norm."""
  return {f'{name}.scale': get(module.weight), f'{name}.bias': get(module.bias)}
