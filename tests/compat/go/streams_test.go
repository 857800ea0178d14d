package compat

import (
	"context"
	"encoding/json"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

// The messages of both streams, from the descriptor set: no generated code.
var files = func() *protoregistry.Files {
	var described descriptorpb.FileDescriptorSet
	text, err := os.ReadFile(facts.Messages)
	if err == nil {
		err = proto.Unmarshal(text, &described)
	}
	var read *protoregistry.Files
	if err == nil {
		read, err = protodesc.NewFiles(&described)
	}
	if err != nil {
		panic(err)
	}
	return read
}()

// stream is one bidirectional stream, whose messages are written and read as JSON with the names of the table.
type stream struct {
	*queue
	call   grpc.ClientStream
	event  protoreflect.MessageDescriptor
	answer protoreflect.MessageDescriptor
}

func (q *queue) open(pkg, service, event, address string, pairs []string) *stream {
	q.Helper()
	find := func(name string) protoreflect.MessageDescriptor {
		found, err := files.FindDescriptorByName(protoreflect.FullName(pkg + "." + name))
		q.must(err)
		return found.(protoreflect.MessageDescriptor)
	}
	connection, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	q.must(err)
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	ctx = metadata.AppendToOutgoingContext(ctx, pairs...)
	q.Cleanup(func() {
		cancel()
		connection.Close()
	})
	both := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	call, err := connection.NewStream(ctx, both, "/"+pkg+"."+service+"/Stream", grpc.MaxCallRecvMsgSize(64<<20))
	q.must(err)
	return &stream{q, call, find(event), find("ServerEvent")}
}

func (q *queue) producerStream(pairs ...string) *stream {
	q.Helper()
	return q.open("producerpb", "ProducerStream", "ProducerEvent", facts.Producer, pairs)
}

func (q *queue) workerStream(pairs ...string) *stream {
	q.Helper()
	return q.open("workerpb", "WorkerStream", "WorkerEvent", facts.Worker, pairs)
}

// producer is a producer's stream after its Hello.
func (q *queue) producer() *stream {
	q.Helper()
	s := q.producerStream()
	s.hello("producer")
	return s
}

// worker is a worker's stream after its Hello.
func (q *queue) worker(token string) *stream {
	q.Helper()
	s := q.workerStream()
	s.hello(token)
	return s
}

func (s *stream) say(kind string, fields M) {
	s.Helper()
	text, err := json.Marshal(M{kind: fields})
	s.must(err)
	message := dynamicpb.NewMessage(s.event)
	s.must(protojson.Unmarshal(text, message))
	s.must(s.call.SendMsg(message))
}

// next is the next answer's kind and content.
func (s *stream) next() (string, M, error) {
	message := dynamicpb.NewMessage(s.answer)
	if err := s.call.RecvMsg(message); err != nil {
		return "", nil, err
	}
	text, err := protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}.Marshal(message)
	s.must(err)
	var read map[string]M
	s.must(json.Unmarshal(text, &read))
	for kind, content := range read {
		return kind, content, nil
	}
	return "", nil, nil
}

// take expects an answer of this kind.
func (s *stream) take(kind string) M {
	s.Helper()
	got, content, err := s.next()
	s.must(err)
	if got != kind {
		s.Fatalf("expected %s, got %s %v", kind, got, content)
	}
	return content
}

// ask says something and takes its acknowledgement.
func (s *stream) ask(ack, kind string, fields M) M {
	s.Helper()
	s.say(kind, fields)
	return s.take(ack)
}

func (s *stream) hello(token string) M {
	s.Helper()
	if fixed, ok := facts.Tokens[token]; ok {
		token = fixed
	}
	return s.ask("hello_ack", "hello", M{"token": token})
}

// ends is how the call ended: its code and what it says.
func (s *stream) ends() (string, string) {
	s.Helper()
	kind, content, err := s.next()
	if err == nil {
		s.Fatalf("%s %v instead of the end", kind, content)
	}
	if err.Error() == "EOF" {
		return "OK", ""
	}
	return status.Code(err).String(), status.Convert(err).Message()
}

func (s *stream) make(fields M) M {
	s.Helper()
	task := M{"seq": 1, "command": s.command, "payload": []byte("{}")}
	for name, value := range fields {
		task[name] = value
	}
	return s.ask("create_ack", "create", task)
}

// makeBatch sends creates, numbered from 1, in one message.
func (s *stream) makeBatch(tasks []M) []M {
	s.Helper()
	for n, task := range tasks {
		task["seq"] = n + 1
	}
	return objects(s.ask("create_ack_batch", "create_batch", M{"tasks": tasks})["acks"])
}

func (s *stream) ready(count int, commands ...string) {
	s.Helper()
	s.say("ready", M{"commands": commands, "lease_seconds": 60, "count": count})
}

func (s *stream) take1(commands ...string) M {
	s.Helper()
	s.ready(1, commands...)
	return s.take("task")["task"].(M)
}

// objects are the objects of a list.
func objects(list any) []M {
	found := []M{}
	for _, one := range list.([]any) {
		found = append(found, one.(M))
	}
	return found
}
