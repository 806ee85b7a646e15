"""A stand-in for the HTTP interface of the Hugging Face hub: repositories of models, in memory, in a thread."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import yaml
from huggingface_hub.utils import HFValidationError, validate_repo_id

TOKEN = "hf_test"


@dataclass
class Repository:
    private: bool
    files: dict[str, bytes] = field(default_factory=dict)

    @property
    def commit(self):
        return hashlib.sha1(repr(sorted(self.files.items())).encode()).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Handler of huggingface_hub's requests: create a repository, commit files without LFS, list and download files."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status=200, content=None, body=b"", **headers):
        body = json.dumps(content).encode() if content is not None else body
        self.send_response(status)
        for name, value in {"Content-Length": len(body), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    @property
    def known(self):
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def do_POST(self):
        sent = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/api/validate-yaml":
            return self.validated(json.loads(sent)["content"])
        if not self.known:
            return self.answer(401, {"error": "Invalid username or password."})
        repositories = self.server.repositories
        if self.path == "/api/repos/create":
            request = json.loads(sent)
            name = "/".join(filter(None, (request.get("organization") or "me", request["name"])))
            if name in repositories:
                return self.answer(
                    409, {"error": "You already created this model repo", "url": f"{self.server.address}/{name}"}
                )
            private = request.get("private") or request.get("visibility") == "private"
            repositories[name] = Repository(bool(private), {".gitattributes": b"*.safetensors filter=lfs\n"})
            return self.answer(content={"url": f"{self.server.address}/{name}", "name": name})
        name, action = re.fullmatch(r"/api/models/(.+?)/(preupload|commit)/main", self.path).groups()
        if action == "preupload":
            files = [{**file, "uploadMode": "regular", "shouldIgnore": False} for file in json.loads(sent)["files"]]
            return self.answer(content={"files": files})
        for line in sent.splitlines():
            entry = json.loads(line)
            if entry["key"] == "file":
                repositories[name].files[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
        commit = repositories[name].commit
        return self.answer(content={"success": True, "commitOid": commit, "commitUrl": f"/{name}/commit/{commit}"})

    def validated(self, card):
        """Answer the validation of a card, whose base model must be the name of a model."""
        metadata = yaml.safe_load(card.split("---")[1])
        try:
            if "base_model" in metadata:
                validate_repo_id(metadata["base_model"])
        except HFValidationError as error:
            return self.answer(400, {"errors": [{"message": str(error)}], "warnings": []})
        return self.answer(content={"errors": [], "warnings": []})

    def do_GET(self):
        path = self.path.partition("?")[0]
        if path == "/":
            return self.answer()
        match = re.fullmatch(r"/(?:api/models/)?([^/]+/[^/]+?)(?:/(revision|tree|resolve)/([^/]+)(?:/(.+))?)?", path)
        repository = match and self.server.repositories.get(match[1])
        if repository is None or (repository.private and not self.known):
            return self.answer(401, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
        commit, files = repository.commit, repository.files
        if match[2] == "resolve":
            if match[4] not in files:
                return self.answer(404, X_Error_Code="EntryNotFound", X_Repo_Commit=commit)
            data = files[match[4]]
            return self.answer(body=data, ETag=f'"{hashlib.sha1(data).hexdigest()}"', X_Repo_Commit=commit)
        if match[2] == "tree":
            return self.answer(
                content=[
                    {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                    for name, data in files.items()
                ]
            )
        siblings = [{"rfilename": name} for name in files]
        return self.answer(content={"id": match[1], "sha": commit, "private": repository.private, "siblings": siblings})

    do_HEAD = do_GET  # noqa: N815 - the name is the server's


@contextmanager
def serving():
    """Yield a running server, with its `address` and its `repositories` by name."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.address, server.repositories = f"http://127.0.0.1:{server.server_port}", {}
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()
