"""Data pipeline in NumPy: sources, tokenizers, token cache, packing, transforms and batches."""

from typing import TYPE_CHECKING

from t2x.base.names import exports

if TYPE_CHECKING:
  from t2x.data.batches import *
  from t2x.data.best_fit import *
  from t2x.data.buckets import *
  from t2x.data.cache import *
  from t2x.data.colour_jitter import *
  from t2x.data.corruption import *
  from t2x.data.crops import *
  from t2x.data.denoising import *
  from t2x.data.fetching import *
  from t2x.data.image_fits import *
  from t2x.data.images import *
  from t2x.data.inspect import *
  from t2x.data.labelled import *
  from t2x.data.masking import *
  from t2x.data.mixtures import *
  from t2x.data.overlap import *
  from t2x.data.packing import *
  from t2x.data.parallel_texts import *
  from t2x.data.prefetching import *
  from t2x.data.rand_augment import *
  from t2x.data.random_erasing import *
  from t2x.data.report import *
  from t2x.data.resegmenting import *
  from t2x.data.sentence_pairs import *
  from t2x.data.several_texts import *
  from t2x.data.skipping import *
  from t2x.data.sources.base import *
  from t2x.data.sources.deduplicated import *
  from t2x.data.sources.digests import *
  from t2x.data.sources.distractors import *
  from t2x.data.sources.files import *
  from t2x.data.sources.held_out import *
  from t2x.data.sources.hub_dataset import *
  from t2x.data.sources.image_folder import *
  from t2x.data.sources.lists import *
  from t2x.data.sources.parquet import *
  from t2x.data.sources.rewriting import *
  from t2x.data.sources.subset import *
  from t2x.data.sources.synthetic import *
  from t2x.data.sources.tfds_source import *
  from t2x.data.spans import *
  from t2x.data.token_choices import *
  from t2x.data.tokenizers.base import *
  from t2x.data.tokenizers.characters import *
  from t2x.data.tokenizers.existing import *
  from t2x.data.tokenizers.hub import *
  from t2x.data.tokenizers.palette import *
  from t2x.data.tokenizers.sentencepiece import *
  from t2x.data.tokenizers.trained import *
else:
  __getattr__, __dir__ = exports(__name__)
