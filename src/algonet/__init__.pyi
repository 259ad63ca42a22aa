"""What editors and type checkers see; at run time `__init__.py` reads here which module a name is loaded from."""

# ruff: isort: skip_file

from algonet.explain import (
    activation as activation,
    replace_gradually as replace_gradually,
    sensitivity as sensitivity,
)
from algonet.fit import (
    fit_camera as fit_camera,
    fit_ifs as fit_ifs,
    fit_mesh as fit_mesh,
)
from algonet.ifs import (
    IFS as IFS,
    chaos_game as chaos_game,
    smooth_raster as smooth_raster,
)
from algonet.nn import (
    FiniteDifferences as FiniteDifferences,
    Insert as Insert,
    Residual as Residual,
    Shortcut as Shortcut,
    SmoothDepth as SmoothDepth,
    SmoothGraph as SmoothGraph,
    Trainable as Trainable,
    WeightedSoftmax as WeightedSoftmax,
    WeightedSoftmin as WeightedSoftmin,
)
from algonet.ran import (
    RAN as RAN,
    IFSInverse as IFSInverse,
    RANTrainer as RANTrainer,
    RenderInverse as RenderInverse,
)
from algonet.relax import (
    Anneal as Anneal,
    BoundedSum as BoundedSum,
    BumpExit as BumpExit,
    Cauchy as Cauchy,
    Gaussian as Gaussian,
    GaussianNoise as GaussianNoise,
    Heaviside as Heaviside,
    Logistic as Logistic,
    Optimal as Optimal,
    Probabilistic as Probabilistic,
    Sech as Sech,
    SmoothStep as SmoothStep,
    SmoothTent as SmoothTent,
    StudentT as StudentT,
    Tent as Tent,
    soft_argmax as soft_argmax,
    soft_argmin as soft_argmin,
    soft_max as soft_max,
    soft_min as soft_min,
    softness_report as softness_report,
    weighted_softmax as weighted_softmax,
    weighted_softmin as weighted_softmin,
)
from algonet.render import (
    Camera as Camera,
    FilteredCoverage as FilteredCoverage,
    Mesh as Mesh,
    SmoothRenderer as SmoothRenderer,
    icosphere as icosphere,
    render_attributes as render_attributes,
)
from algonet.smooth_python import (
    smooth as smooth,
    softness as softness,
)
from algonet.sorting import (
    Bitonic as Bitonic,
    OddEven as OddEven,
    SoftArgsort as SoftArgsort,
    SoftMedian as SoftMedian,
    SoftQuantile as SoftQuantile,
    SoftRank as SoftRank,
    SoftSort as SoftSort,
    SoftTopK as SoftTopK,
    SoftTopKMask as SoftTopKMask,
    soft_argsort as soft_argsort,
    soft_median as soft_median,
    soft_quantile as soft_quantile,
    soft_rank as soft_rank,
    soft_sort as soft_sort,
    soft_topk as soft_topk,
    soft_topk_mask as soft_topk_mask,
    which_method as which_method,
)
from algonet.speech import (
    SmoothSynthesizer as SmoothSynthesizer,
)
from algonet.while_lang import (
    Programs as Programs,
    WhileProgram as WhileProgram,
)

__version__: str
__all__: list[str]
