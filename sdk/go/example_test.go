package carrel_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"strings"

	"connectrpc.com/connect"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// Make a workspace for a chat, run a command in it, and see what holds it.
func Example() {
	ctx := context.Background()
	c, err := carrel.Dial(ctx, "") // $CARREL_HOST, or the default socket
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	made, err := c.Workspaces().Create(ctx, connect.NewRequest(&carrelv1.CreateRequest{Key: "chat-42"}))
	if err != nil {
		log.Fatal(err)
	}
	for _, control := range made.Msg.GetWorkspace().GetControls() {
		fmt.Println(control.GetId(), control.GetState(), control.GetEvidence())
	}

	res, err := c.Exec(ctx, "chat-42", carrel.Spec{Argv: []string{"sh", "-c", "id; pwd"}}, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("exit code %d\n%s", res.Status.Code, res.Stdout)
}

// Run a command whose streams are this process's own, as "carrel exec -i" does.
func ExampleClient_Start() {
	ctx := context.Background()
	c, err := carrel.New(carrel.Options{})
	if err != nil {
		log.Fatal(err)
	}
	cmd, err := c.Start(ctx, "chat-42", carrel.Spec{Argv: []string{"wc", "-c"}, Stdin: true})
	if err != nil {
		log.Fatal(err)
	}
	status, err := cmd.Run(ctx, carrel.Streams{Stdin: strings.NewReader("hello"), Stdout: os.Stdout, Stderr: os.Stderr})
	if err != nil {
		log.Fatal(err)
	}
	os.Exit(status.Code)
}

// An error about the command is told from one about the workspace.
func ExampleIsCommandError() {
	c, err := carrel.New(carrel.Options{Host: "unix:///run/carrel/carrel.sock"})
	if err != nil {
		log.Fatal(err)
	}
	_, err = c.Exec(context.Background(), "chat-42", carrel.Spec{Argv: []string{"no-such-program"}}, nil)
	if carrel.IsCommandError(err) {
		fmt.Println("install it in the workspace first:", err)
	}
}
