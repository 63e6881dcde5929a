"""Products of one row read vectors, where no other node sees the difference."""

from collage.backends.ncnn.row_vectors import as_vectors

PRODUCTS = """7767517
4 4
Input        in0      0 1 in0
InnerProduct fcrelu_0 1 1 in0 1 0=8 1=1 2=128 9=1
InnerProduct linear_1 1 1 1 2 0=4 1=1 2=32
Softmax      soft_0   1 1 2 out0 0=1 1=1
"""


def layers(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()[2:]]


def test_an_input_of_one_row_becomes_a_vector() -> None:
    changed = as_vectors(PRODUCTS, ["in0"])
    assert changed.splitlines()[1] == "5 5"
    assert layers(changed)[:3] == [
        ["Input", "in0", "0", "1", "in0"],
        ["Reshape", "in0_to_vector", "1", "1", "in0", "in0_vector", "0=-1"],
        ["InnerProduct", "fcrelu_0", "1", "1", "in0_vector", "1", "0=8", "1=1", "2=128", "9=1"],
    ]


def test_inputs_of_other_shapes_stay() -> None:
    assert layers(as_vectors(PRODUCTS, [])) == layers(PRODUCTS)


def test_a_reshape_to_one_row_becomes_one_to_a_vector() -> None:
    text = PRODUCTS.replace("in0 1 0=8", "r 1 0=8").replace(
        "InnerProduct fcrelu_0", "Reshape re 1 1 in0 r 0=16 1=1\nInnerProduct fcrelu_0"
    )
    assert ["Reshape", "re", "1", "1", "in0", "r", "0=16"] in layers(as_vectors(text, []))


def test_a_net_that_could_tell_the_difference_stays() -> None:
    other_axis = PRODUCTS.replace("0=1 1=1\n", "0=0 1=1\n")
    assert as_vectors(other_axis, ["in0"]) == other_axis
    concat = PRODUCTS.replace("Softmax      soft_0   1 1 2", "Concat c 2 1 in0 2")
    assert as_vectors(concat, ["in0"]) == concat
    two_rows = PRODUCTS.replace("Softmax      soft_0", "Reshape r").replace("0=1 1=1\n", "0=2 1=2\n")
    assert as_vectors(two_rows, ["in0"]) == two_rows


def test_a_net_without_products_stays() -> None:
    text = "7767517\n2 2\nInput in0 0 1 in0\nReLU r 1 1 in0 out0\n"
    assert as_vectors(text, ["in0"]) == text
