"""Configuration: validated models, read from YAML and overridden on the command line.

The docstring under a field is its documentation: ``--help`` and error messages are made from it.
"""

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
    ClassificationUtility,
    JobConfig,
    PrivatizeConfig,
    QueryConfig,
    QuickstartConfig,
    QuickstartProtection,
    TrainMaskConfig,
)
from jobs.config.loading import describe_fields, load_config, public_settings, section_of
from jobs.config.release import (
    BudgetConfig,
    ChunkConfig,
    KeyConfig,
    LimitsConfig,
    MaskTrainingConfig,
    OutputConfig,
    ProtectionConfig,
    TrackingConfig,
    WeightedMask,
    WorkersConfig,
)
from jobs.config.section import Section

__all__ = [
    "BASELINES",
    "AuditConfig",
    "BudgetConfig",
    "ChunkConfig",
    "ClassificationUtility",
    "Compared",
    "ConceptConfig",
    "EncoderConfig",
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
    "Section",
    "SplitConfig",
    "StorageConfig",
    "StoredVectors",
    "TrackingConfig",
    "TrainMaskConfig",
    "WeightedMask",
    "WorkersConfig",
    "describe_fields",
    "load_config",
    "public_settings",
    "section_of",
    "template_columns",
    "without_credentials",
]
