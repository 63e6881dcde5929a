"""The smallest models of known faults of runtimes, as texts."""

from __future__ import annotations

GRU_THEN_GATHER = """g (float[5,1,4] x) => (float[1,2] y)
    <float[1,6,4] w = {WEIGHTS}, float[1,6,2] r = {STATES}, int64 i = {0}> {
    o, h = GRU<hidden_size = 2>(x, w, r)
    y = Gather<axis = 0>(h, i)
}""".replace("WEIGHTS", ",".join(["0.1"] * 24)).replace("STATES", ",".join(["0.1"] * 12))
TRANSPOSED = f"""g (float[4,3] x) => (float[3,5] y) <float[4,5] w = {{{",".join(map(str, range(20)))}}}> {{
    y = Gemm<transA = 1>(x, w)
}}"""
VARIABLE_NORM = """g (float[1,3,2,2] x, float[3] s) => (float[1,3,2,2] y) {
    y = BatchNormalization(x, s, s, s, s)
}"""
SUM_OF_ONE = "g (float[4] x) => (float[4] y) { y = Sum(x) }"
DILATED_POOL = """g (float[1,3,8,8] x) => (float[1,3,6,6] y) {
    y = MaxPool<kernel_shape = [2, 2], dilations = [2, 2]>(x)
}"""
TURNED = """g (float[1,4,4,6] x) => (float[1,CHANNELS,8,12] y) <float[4,2,3,3] w = {WEIGHTS}> {
    y = ConvTranspose<strides = [2, 2], MORE>(x, w)
}""".replace("WEIGHTS", ",".join(str(i % 7) for i in range(72)))
TURNED_TO_SHAPE = TURNED.replace("MORE", "output_shape = [8, 12]").replace("CHANNELS", "2")
TURNED_LOWER = TURNED.replace("MORE", 'auto_pad = "SAME_LOWER"').replace("CHANNELS", "2")
TURNED_IN_GROUPS = TURNED.replace("MORE", "group = 4, output_shape = [8, 12]").replace("CHANNELS", "8")
LOWER_POOL = """g (float[1,4,4,6] x) => (float[1,4,2,6] y) {
    y = MaxPool<kernel_shape = [3, 1], strides = [2, 1], auto_pad = "SAME_LOWER">(x)
}"""
POOL_IN_SPACE = """g (float[1,3,4,4,4] x) => (float[1,3,3,3,3] y) {
    y = MaxPool<kernel_shape = [2, 2, 2]>(x)
}"""
THREE_TO_BROADCAST = (
    "g (float[3,4] x, float[3,4] z) => (float[3,4] y) <float s = {0.25}> { y = Min(x, s, z) }"
)
BACKWARD = """g (float[2,8] x) => (float[2,2] y)
    <int64[1] a = {7}, int64[1] b = {3}, int64[1] c = {1}, int64[1] d = {-2}> {
    y = Slice(x, a, b, c, d)
}"""
CUTTING = "g (float[2,8] x) => (float[2,8] y) <int64[4] p = {0, -1, 0, 1}> { y = Pad(x, p) }"
TRAINING_NORM = """g (float[2,3,2,2] x) => (float[2,3,2,2] y) <float[3] s = {1, 2, 3}> {
    y, m, v = BatchNormalization<training_mode = 1>(x, s, s, s, s)
}"""
LAST_OF_EQUALS = "g (float[4,8] x) => (int64[4,1] y) { y = ArgMax<axis = 1, select_last_index = 1>(x) }"
NOTHING = "g (float[1,4] x) => (float[1,4] y) { y = Identity(x) }"
LOWER_CONV = f"""g (float[1,2,4,4] x) => (float[1,1,4,4] y) <float[1,2,2,2] w = {{{",".join(map(str, range(8)))}}}> {{
    y = Conv<auto_pad = "SAME_LOWER">(x, w)
}}"""
GLOBAL_IN_SPACE = "g (float[2,6,3,4,4] x) => (float[2,6,1,1,1] y) { y = GlobalMaxPool(x) }"
NAMED_PAD = """g (float[6,6] x) => (float[8,6] y) <int64[2] p = {1, 1}, int64[1] a = {0}> {
    y = Pad(x, p, "", a)
}"""
NO_AXES = "g (float[6,6] x) => (float[1,1] y) <int64[0] a = {}> { y = ReduceMin(x, a) }"
RESIZED = """g (float[1,4,4,6] x) => (float[1,4,8,12] y) <float[0] r = {}, float[4] s = {1, 1, 2, 2}> {
    y = Resize<MODE>(x, r, s)
}"""
CUBIC = RESIZED.replace("MODE", 'mode = "cubic"')
CEILED = RESIZED.replace("MODE", 'nearest_mode = "ceil", coordinate_transformation_mode = "asymmetric"')
EXCLUDED = RESIZED.replace("MODE", 'mode = "cubic", exclude_outside = 1')
LOWER_MEAN = LOWER_POOL.replace("MaxPool", "AveragePool")
PEEPHOLES = """g (float[3,1,2] x) => (float[3,1,1,1] y)
    <float[1,4,2] w = {W}, float[1,4,1] r = {R}, float[1,3] p = {2, 3, -2}> {
    y = LSTM<hidden_size = 1>(x, w, r, "", "", "", "", p)
}""".replace("{W}", "{1, -1, 0.5, 1, -1, 1, 2, 1}").replace("{R}", "{1, -1, 0.5, 1}")
MASKED_DROPOUT = "g (float[4,8] x) => (bool[4,8] m) { y, m = Dropout(x) }"
FLAT = "g (float[2,3,4] x) => (float[2,3,4] y) { y = OP<axis = 1>(x) }"
RUNNING_MEAN = """g (float[1,1,2,2] x) => (float[1] n, float[1,1,2,2] y)
    <float[1] one = {1}, float[1] mean = {0}, float[1] variance = {1}> {
    y, m, v = BatchNormalization<training_mode = 1, momentum = 0.5>(x, one, one, mean, variance)
    n = Neg(m)
}"""
