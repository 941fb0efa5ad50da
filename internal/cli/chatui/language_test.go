package chatui_test

import (
	"fmt"
	"strings"
	"testing"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/carrel-dev/carrel/internal/agent/messages"
	"github.com/carrel-dev/carrel/internal/base/termtext"
	"github.com/carrel-dev/carrel/internal/cli/chatui"
)

// In Chinese, of which each character takes two cells, no line is wider than the window: a plan, its question with all of its keys, the
// help, hints and states. The keys to press are the same, and an answer is the same word of the API.
func TestChinese(t *testing.T) {
	for _, size := range []tea.WindowSizeMsg{{Width: 60, Height: 20}, {Width: 33, Height: 20}, {Width: 120, Height: 40}} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			openIn(t, messages.Chinese, func(s *screen) {
				fits := func() {
					t.Helper()
					for l := range strings.SplitSeq(s.View().Content, "\n") {
						if n := termtext.Width(ansi.Strip(l)); n > size.Width {
							t.Errorf("%d cells: %q", n, ansi.Strip(l))
						}
					}
				}
				s.send(size)
				s.keys("磁盘为什么满了？", "enter")
				s.shows("您> 磁盘为什么满了？")
				p := plan("du -xsh /var/log/很长的目录/另一个很长的目录/文件", "rm x")
				p.Goal = "找出占用空间最大的目录，并删除其中不再需要的文件，以便腾出空间"
				p.Steps[0].ReadOnly = true
				q := question()
				q.Session, q.Steps = true, true
				q.Reasons = append(q.Reasons, "removes or empties files: /var/x")
				s.happens(p, q)
				fits()
				s.keys("y") // before it could be read
				s.later()
				for range 9 {
					fits()
					s.keys(" ")
				}
				if size.Width >= 60 {
					s.shows("计划 1：", "要执行吗？风险 30", "原因 it deletes", "删除或清空文件：/var/x", "按 t 则其中需要答复的命令",
						"[y] 允许一次  [s] 逐步  [t] 本会话  [n] 不允许")
				}
				s.hides("Run it?", "waiting", "because", "[n] no")
				s.keys("a")
				s.shows("未答复")
				fits()
				s.keys("n")
				s.shows("为什么不？")
				fits()
				s.keys("esc", "t")
				s.called("ask 磁盘为什么满了？", "answer ap-1 thread ")
				s.happens(chatui.StepEnd{Step: 1, Target: "host", Error: "没有这个文件或目录，也没有别的"})
				s.happens(chatui.Refusal{Outcome: "denied", Why: "nobody approved it in time"})
				s.shows("失败：", "未获批准: 没有人及时批准")
				fits()
				s.keys("/help", "enter")
				for range 6 {
					fits()
					s.keys("pgup")
				}
				s.s.ends <- nil
				s.rest()
				fits()
			})
		})
	}
}
