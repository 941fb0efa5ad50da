"""Write, list and read files with the asynchronous client."""
import asyncio

import carrel


async def main() -> None:
    async with carrel.AsyncClient() as client:
        ws = await client.workspaces.create("example-files")
        try:
            await ws.files.write("notes/one.txt", "first\nsecond\n", parents=True)
            for entry in await ws.files.list("notes"):
                print(entry.path, entry.size)
            print((await ws.files.search("notes", text="sec")).matches[0].line)
            print(await ws.files.read_text("notes/one.txt"), end="")
        finally:
            await ws.destroy(purge=True)


asyncio.run(main())

# Output:
# one.txt 13
# 2
# first
# second
