from retrievalkit import testing


def test_the_loss_keeps_the_contract():
    testing.check_loss("my_name")
