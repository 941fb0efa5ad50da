"""An editor made of the Python library of the Agent Client Protocol: it starts the command behind the answer, asks once, and
says what it was told, a line of JSON each. Its user gives the same answer to every question."""
import asyncio
import json
import sys

import acp


class Editor(acp.Client):
    def __init__(self, answer):
        self.answer = answer

    async def request_permission(self, session_id, tool_call, options, **_):
        kinds = [o.kind for o in options]
        print(json.dumps({"asked": tool_call.title, "status": tool_call.status, "kinds": kinds}), flush=True)
        chosen = next(o for o in options if o.kind == self.answer)
        return acp.RequestPermissionResponse.model_validate({"outcome": {"outcome": "selected", "optionId": chosen.option_id}})

    async def session_update(self, session_id, update, **_):
        print(json.dumps(update.model_dump(mode="json", by_alias=True, exclude_none=True)), flush=True)

    def on_connect(self, conn):
        pass


async def main(answer, question, file, *argv):
    async with acp.spawn_agent_process(lambda _: Editor(answer), argv[0], *argv[1:], env=dict(__import__("os").environ)) as (agent, _):
        first = await agent.initialize(protocol_version=acp.PROTOCOL_VERSION)
        print(json.dumps({"agent": first.agent_info.name, "version": first.protocol_version}), flush=True)
        session = await agent.new_session(cwd=__import__("os").getcwd(), mcp_servers=[])
        end = await agent.prompt(
            session_id=session.session_id, prompt=[acp.text_block(question), acp.resource_link_block("notes.txt", "file://" + file)])
        print(json.dumps({"end": end.stop_reason}), flush=True)


asyncio.run(main(*sys.argv[1:]))
