from retrievalkit import testing


def test_the_pretrainer_keeps_the_contract():
    testing.check_pretrainer("my_name")
