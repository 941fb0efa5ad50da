package acp

import (
	"encoding/json"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
)

// Prompt is what the agent is asked.
type Prompt struct {
	Text string
	// Data are texts that came with it, and Files the absolute paths of files that it names, in their order.
	Data  []Data
	Files []string
}

// Data is a text that the editor has put beside a prompt, as a file that is not saved yet.
type Data struct{ Name, Text string }

// readPrompt reads the parameters of session/prompt.
func readPrompt(params json.RawMessage) (session string, p Prompt, err error) {
	var x struct {
		SessionID string `json:"sessionId"`
		Prompt    []struct {
			Type     string `json:"type"`
			Text     string `json:"text"`
			Name     string `json:"name"`
			URI      string `json:"uri"`
			Resource struct {
				URI  string  `json:"uri"`
				Text *string `json:"text"`
			} `json:"resource"`
		} `json:"prompt"`
	}
	if err := json.Unmarshal(params, &x); err != nil {
		return "", p, err
	}
	var text strings.Builder
	for _, part := range x.Prompt {
		switch {
		case part.Type == "text":
			text.WriteString(part.Text)
		case part.Type == "resource_link":
			text.WriteString(part.Name)
			path, err := pathOf(part.URI)
			if err != nil {
				return "", p, err
			}
			p.Files = append(p.Files, path)
		case part.Type == "resource" && part.Resource.Text != nil:
			name := part.Resource.URI
			if path, err := pathOf(name); err == nil {
				name = path
			}
			p.Data = append(p.Data, Data{name, *part.Resource.Text})
		default:
			return "", p, fmt.Errorf("it has a part of type %.20q that is no text; send text, or name files", part.Type)
		}
	}
	p.Text = text.String()
	return x.SessionID, p, nil
}

// pathOf is the path of a file on this machine that a URI names.
func pathOf(uri string) (string, error) {
	u, err := url.Parse(uri)
	if err != nil || u.Scheme != "file" || u.Host != "" && u.Host != "localhost" || !filepath.IsAbs(u.Path) {
		return "", fmt.Errorf("it names %.200q, and only files of this machine can be named", uri)
	}
	return u.Path, nil
}
