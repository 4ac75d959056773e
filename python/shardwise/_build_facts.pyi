VERSION: str  # 0.2.0, or 0.2.1.dev5+g1a2b3c4d5
TORCH: str  # of the headers: 2.13.0
COMPILER: str  # GNU 12.2.0
BUILD_TYPE: str  # Release
CUDA: str  # of torch, where kernels for it are linked: 13.0; else empty
LAYERS: bool  # False: the build has the core alone
