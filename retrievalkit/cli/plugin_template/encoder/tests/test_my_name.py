from retrievalkit import testing


def test_the_encoder_keeps_the_contract():
    testing.check_encoder("my_name")
