package staged

// remember notes the states that count as older than the run though they are new, so that changes can be made again, and later
// ones behind them: what Apply made of a file that was as the run found it, what Undo, or an Apply that was taken back, put where it
// was, and directories in which nobody else changed anything.
//
// Until the clock of file systems has moved on, a change of another process has the same stamp. So it waits for that first, and
// notes what still has the size, the times of the content and the mode that it was given.
func (t *txn) remember(back bool) error {
	if _, err := Clock(t.ctx); err != nil {
		return err
	}
	own, err := t.s.own()
	if err != nil {
		return err
	}
	for i, o := range t.j.Ops {
		if o.In {
			dir, _ := split(string(o.Path))
			t.noteDir(own, dir)
		}
		if o.Base && !back && len(o.Old) == 1 && o.Old[0].Stamp.Nlink > 1 {
			t.noteKept(own, i)
		}
		if !o.Base {
			continue
		}
		switch {
		case o.Do == chmod:
			t.noteDir(own, string(o.Path))
		case !back:
			for _, made := range o.New {
				t.noteSame(own, join(string(o.Path), string(made.Rel)), made.Stamp)
			}
		case len(o.Old) > 0:
			t.noteSame(own, string(o.Path), o.Old[0].Stamp)
		}
	}
	return t.s.putOwn(own)
}

// noteDir notes what a directory is now. One that is gone needs no note.
func (t *txn) noteDir(own inodes, path string) {
	d, err := t.lower.via(path)
	if err != nil {
		return
	}
	defer d.close()
	if s, err := d.self(); err == nil {
		own.note(s)
	}
}

// noteSame notes what was put at a path, if it is still that.
func (t *txn) noteSame(own inodes, path string, was stamp) {
	d, base, err := t.b.parent(path)
	if err != nil {
		return
	}
	if s, there, err := d.stat(base); err == nil && there && was.unchanged(s, true) {
		own.note(s)
	}
}

// noteKept notes what was moved to the journal and has other names, which are newer by that.
func (t *txn) noteKept(own inodes, i int) {
	d, base, err := t.kept.parent(t.keptPath(i))
	if err != nil {
		return
	}
	if s, there, err := d.stat(base); err == nil && there && s.Nlink > 1 {
		own.note(s)
	}
}
