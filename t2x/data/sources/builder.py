"""The TFDS builder of `BuiltSource`, in its own module because importing TFDS is slow."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow_datasets as tfds

from t2x.data.sources.base import Example


@dataclasses.dataclass(kw_only=True)
class SourceConfig(tfds.core.BuilderConfig):
  """Builder config that holds the source to build."""

  source: Any = None


class Prepared(tfds.core.GeneratorBasedBuilder):
  """The TFDS builder of every `BuiltSource`; its config holds the source."""

  VERSION = tfds.core.Version('1.0.0')

  def _info(self) -> tfds.core.DatasetInfo:
    features = tfds.features.FeaturesDict(self.builder_config.source.features())
    return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

  def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, Example]]]:
    generated = self.builder_config.source.generate()
    return {split: self._generate_examples(examples) for split, examples in generated.items()}

  def _generate_examples(self, examples: Iterable[Example]) -> Iterator[tuple[int, Example]]:
    yield from enumerate(examples)
