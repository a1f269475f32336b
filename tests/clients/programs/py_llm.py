"""llm, the command line: a model of extra-openai-models.yaml, streamed and not."""

import os
import pathlib
import subprocess
import sys

folder = pathlib.Path(os.environ["HOME"], "llm")
folder.mkdir(parents=True, exist_ok=True)
entry = f"""- model_id: mesh
  model_name: {os.environ["MESH_MODEL"]}
  api_base: {os.environ["MESH_BASE_URL"]}
  api_key_name: mesh
"""
(folder / "extra-openai-models.yaml").write_text(entry)
environment = {**os.environ, "LLM_USER_PATH": str(folder)}
llm = [str(pathlib.Path(sys.executable).parent / "llm")]
for way in ([], ["--no-stream"]):
    command = [*llm, "-m", "mesh", "--key", os.environ["MESH_API_KEY"], "-o", "max_tokens", "8", *way, "Hi"]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert answer.returncode == 0 and answer.stdout.strip(), answer
