package api

import "connectrpc.com/connect"

// request and response are shorter names for what each handler takes and returns.
type (
	request[T any]  = connect.Request[T]
	response[T any] = connect.Response[T]
)
