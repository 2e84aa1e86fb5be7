"""Configuration: validated models, read from YAML and overridden on the command line.

The docstring under a field is its documentation: ``--help`` and error messages are made from it.
"""

from jobs.config.attacks import AveragingConfig, DictionaryConfig, TextAttackConfig
from jobs.config.calibrate import CalibrateConfig
from jobs.config.compared import BASELINES, Compared, StoredVectors
from jobs.config.inputs import (
    ConceptConfig,
    EncoderConfig,
    InputConfig,
    SplitConfig,
    StorageConfig,
    template_columns,
    without_credentials,
)
from jobs.config.jobs import (
    AuditConfig,
    JobConfig,
    PrivatizeConfig,
    QueryConfig,
    QuickstartConfig,
    QuickstartProtection,
    TrainMaskConfig,
)
from jobs.config.loading import describe_fields, load_config, public_settings, sections_of
from jobs.config.release import (
    BudgetConfig,
    ChunkConfig,
    KeyConfig,
    LimitsConfig,
    MaskTrainingConfig,
    OutputConfig,
    ProtectionConfig,
    RegistryConfig,
    TrackingConfig,
    WeightedMask,
    WorkersConfig,
)
from jobs.config.reproduce import Experiment, ReproduceConfig
from jobs.config.section import Section
from jobs.config.study import NOISE_LAWS, Range, SpaceConfig, StudyConfig
from jobs.config.utility import (
    ClassificationUtility,
    ClusteringUtility,
    RetrievalUtility,
    StsUtility,
    UtilityTask,
    UtilityTasks,
)

__all__ = [
    "BASELINES",
    "NOISE_LAWS",
    "AuditConfig",
    "AveragingConfig",
    "BudgetConfig",
    "CalibrateConfig",
    "ChunkConfig",
    "ClassificationUtility",
    "ClusteringUtility",
    "Compared",
    "ConceptConfig",
    "DictionaryConfig",
    "EncoderConfig",
    "Experiment",
    "InputConfig",
    "JobConfig",
    "KeyConfig",
    "LimitsConfig",
    "MaskTrainingConfig",
    "OutputConfig",
    "PrivatizeConfig",
    "ProtectionConfig",
    "QueryConfig",
    "QuickstartConfig",
    "QuickstartProtection",
    "Range",
    "RegistryConfig",
    "ReproduceConfig",
    "RetrievalUtility",
    "Section",
    "SpaceConfig",
    "SplitConfig",
    "StorageConfig",
    "StoredVectors",
    "StsUtility",
    "StudyConfig",
    "TextAttackConfig",
    "TrackingConfig",
    "TrainMaskConfig",
    "UtilityTask",
    "UtilityTasks",
    "WeightedMask",
    "WorkersConfig",
    "describe_fields",
    "load_config",
    "public_settings",
    "sections_of",
    "template_columns",
    "without_credentials",
]
