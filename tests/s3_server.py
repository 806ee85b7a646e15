"""S3 server in a thread of the test's process, which counts the bytes it sends."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from contextlib import contextmanager

import pytest


@contextmanager
def serving():
    """Yield the address of a server, and the number of bytes sent, by bucket and object."""
    app = pytest.importorskip("moto.moto_server.werkzeug_app")
    pytest.importorskip("s3fs")
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    whole, sent = app.DomainDispatcherApplication(app.create_backend_app), Counter()

    def counting(environ, start_response):
        for piece in whole(environ, start_response):
            sent[environ["PATH_INFO"].removeprefix("/")] += len(piece)
            yield piece

    server = make_server("127.0.0.1", 0, counting, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", sent
    server.shutdown()
    thread.join()


def client(address):
    import boto3

    return boto3.client("s3", endpoint_url=address)


def objects(address, bucket):
    """Return a bucket's objects by name, read with boto3."""
    listed = client(address).list_objects_v2(Bucket=bucket).get("Contents", [])
    return {
        entry["Key"]: client(address).get_object(Bucket=bucket, Key=entry["Key"])["Body"].read() for entry in listed
    }


def put(address, bucket, name, data):
    client(address).put_object(Bucket=bucket, Key=name, Body=data)
