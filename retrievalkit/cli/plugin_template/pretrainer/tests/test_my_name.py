from retrievalkit import testing


def test_the_pretrainer_keeps_the_contract(tmp_path):
    testing.check_pretrainer("my_name", model=testing.tiny_model(tmp_path / "model"))
