// Programs over `std::net`. This file is compiled twice, with the types of `std::net` and with ours
// under the same names; nothing else differs.

fn listen(side: &Side) -> io::Result<(TcpListener, u16)> {
    let _entered = side.enter();
    let listener = TcpListener::bind((side.host(), 0))?;
    let port = listener.local_addr()?.port();
    Ok((listener, port))
}

fn dial(from: &Side, to: &Side, port: u16) -> io::Result<TcpStream> {
    let _entered = from.enter();
    TcpStream::connect((to.host(), port))
}

fn pair(server: &Side, client: &Side) -> io::Result<(TcpStream, TcpStream)> {
    let (listener, port) = listen(server)?;
    let ours = dial(client, server, port)?;
    Ok((listener.accept()?.0, ours))
}

fn udp(side: &Side) -> io::Result<UdpSocket> {
    let _entered = side.enter();
    UdpSocket::bind((side.host(), 0))
}

fn udp_pair(server: &Side, client: &Side) -> io::Result<(UdpSocket, UdpSocket)> {
    let (a, b) = (udp(server)?, udp(client)?);
    a.connect(b.local_addr()?)?;
    b.connect(a.local_addr()?)?;
    Ok((a, b))
}

fn kind<T>(result: io::Result<T>) -> String {
    match result {
        Ok(_) => "no error".to_owned(),
        Err(error) => format!("{:?}", error.kind()),
    }
}

fn serve_echo(mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = [0; 1024];
    loop {
        let len = stream.read(&mut buffer)?;
        if len == 0 {
            return Ok(());
        }
        stream.write_all(&buffer[..len])?;
    }
}

fn echo_server_with_a_thread_for_each_connection(s: &Side, c: &Side) -> io::Result<String> {
    let (listener, port) = listen(s)?;
    let server = thread::spawn(move || -> io::Result<()> {
        let mut threads = Vec::new();
        for stream in listener.incoming().take(3) {
            let stream = stream?;
            threads.push(thread::spawn(move || serve_echo(stream)));
        }
        for thread in threads {
            thread.join().expect("no panic")?;
        }
        Ok(())
    });
    let mut heard = Vec::new();
    for word in ["one", "two", "three"] {
        let mut stream = dial(c, s, port)?;
        stream.write_all(word.as_bytes())?;
        let mut back = vec![0; word.len()];
        stream.read_exact(&mut back)?;
        heard.push(String::from_utf8(back).expect("it is text"));
    }
    server.join().expect("no panic")?;
    Ok(heard.join(" "))
}

fn request_and_response(s: &Side, c: &Side) -> io::Result<String> {
    let (mut theirs, mut ours) = pair(s, c)?;
    let server = thread::spawn(move || -> io::Result<()> {
        let mut request = [0; 4];
        theirs.read_exact(&mut request)?;
        let response = request.iter().rev().copied().collect::<Vec<u8>>();
        theirs.write_all(&response)
    });
    ours.write_all(b"ping")?;
    let mut response = String::new();
    ours.read_to_string(&mut response)?;
    server.join().expect("no panic")?;
    Ok(response)
}

fn lines_through_a_buffered_reader(s: &Side, c: &Side) -> io::Result<String> {
    let (theirs, mut ours) = pair(s, c)?;
    ours.write_all(b"first\nsecond\nthird without an end")?;
    drop(ours);
    let lines = BufReader::new(theirs).lines();
    Ok(lines.collect::<io::Result<Vec<_>>>()?.join("|"))
}

fn lines_through_a_buffered_reader_of_a_reference(s: &Side, c: &Side) -> io::Result<String> {
    let (theirs, ours) = pair(s, c)?;
    writeln!(&ours, "hello")?;
    let mut line = String::new();
    BufReader::new(&theirs).read_line(&mut line)?;
    write!(&theirs, "you said {line}")?;
    theirs.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    (&ours).read_to_string(&mut answer)?;
    Ok(answer)
}

fn a_copy_until_the_end(s: &Side, c: &Side) -> io::Result<String> {
    let (mut theirs, mut ours) = pair(s, c)?;
    let sender = thread::spawn(move || -> io::Result<u64> {
        io::copy(&mut &vec![7; 300_000][..], &mut ours)
    });
    let mut all = Vec::new();
    let copied = io::copy(&mut theirs, &mut all)?;
    let sent = sender.join().expect("no panic")?;
    Ok(format!("{sent} {copied} {}", all.iter().all(|byte| *byte == 7)))
}

fn a_writer_that_shuts_down_and_reads_to_the_end(s: &Side, c: &Side) -> io::Result<String> {
    let (mut theirs, mut ours) = pair(s, c)?;
    let server = thread::spawn(move || -> io::Result<()> {
        let mut all = Vec::new();
        theirs.read_to_end(&mut all)?;
        theirs.write_all(&all)
    });
    ours.write_all(b"all of it")?;
    ours.shutdown(Shutdown::Write)?;
    let mut all = String::new();
    ours.read_to_string(&mut all)?;
    server.join().expect("no panic")?;
    Ok(all)
}

fn clones_for_a_reading_and_a_writing_thread(s: &Side, c: &Side) -> io::Result<String> {
    let (theirs, ours) = pair(s, c)?;
    let echo = thread::spawn(move || serve_echo(theirs));
    let mut reader = ours.try_clone()?;
    let mut writer = ours;
    let writing = thread::spawn(move || -> io::Result<()> {
        for number in 0..2000_u32 {
            writer.write_all(&number.to_be_bytes())?;
        }
        writer.shutdown(Shutdown::Write)
    });
    let mut all = Vec::new();
    reader.read_to_end(&mut all)?;
    writing.join().expect("no panic")?;
    echo.join().expect("no panic")?;
    let numbers = all.chunks(4).map(|four| u32::from_be_bytes(four.try_into().expect("four")));
    Ok(format!("{}", numbers.eq(0..2000)))
}

fn one_connection_that_threads_share(s: &Side, c: &Side) -> io::Result<String> {
    let (theirs, ours) = pair(s, c)?;
    let ours = std::sync::Arc::new(ours);
    let threads: Vec<_> = (0..4_u8)
        .map(|number| {
            let ours = std::sync::Arc::clone(&ours);
            thread::spawn(move || (&*ours).write_all(&[number; 100]))
        })
        .collect();
    for thread in threads {
        thread.join().expect("no panic")?;
    }
    drop(ours);
    let mut all = Vec::new();
    (&theirs).read_to_end(&mut all)?;
    let mut counts = [0; 4];
    all.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
    Ok(format!("{counts:?}"))
}

fn a_clone_keeps_the_connection_open(s: &Side, c: &Side) -> io::Result<String> {
    let (mut theirs, ours) = pair(s, c)?;
    let mut other = ours.try_clone()?;
    drop(ours);
    other.write_all(b"still here")?;
    drop(other);
    let mut all = String::new();
    theirs.read_to_string(&mut all)?;
    Ok(all)
}

fn a_read_with_a_timeout(s: &Side, c: &Side) -> io::Result<String> {
    let (_theirs, mut ours) = pair(s, c)?;
    ours.set_read_timeout(Some(Duration::from_millis(20)))?;
    let timeout = ours.read_timeout()?;
    let error = kind(ours.read(&mut [0; 8]));
    let zero = kind(ours.set_read_timeout(Some(Duration::ZERO)));
    ours.set_read_timeout(None)?;
    Ok(format!("{timeout:?} {error} {zero} {:?}", ours.read_timeout()?))
}

fn a_write_with_a_timeout(s: &Side, c: &Side) -> io::Result<String> {
    let (_theirs, mut ours) = pair(s, c)?;
    ours.set_write_timeout(Some(Duration::from_millis(20)))?;
    loop {
        if let Err(error) = ours.write(&[0; 100_000]) {
            return Ok(format!("{:?} {:?}", ours.write_timeout()?, error.kind()));
        }
    }
}

fn a_loop_that_does_not_block(s: &Side, c: &Side) -> io::Result<String> {
    let (mut theirs, mut ours) = pair(s, c)?;
    ours.set_nonblocking(true)?;
    let first = kind(ours.read(&mut [0; 8]));
    theirs.write_all(b"late")?;
    let mut all = Vec::new();
    while all.len() < 4 {
        let mut buffer = [0; 8];
        match ours.read(&mut buffer) {
            Ok(len) => all.extend_from_slice(&buffer[..len]),
            Err(ref error) if error.kind() == io::ErrorKind::WouldBlock => thread::yield_now(),
            Err(error) => return Err(error),
        }
    }
    Ok(format!("{first} {}", String::from_utf8_lossy(&all)))
}

fn an_accept_that_does_not_block(s: &Side, c: &Side) -> io::Result<String> {
    let (listener, port) = listen(s)?;
    listener.set_nonblocking(true)?;
    let first = kind(listener.accept());
    let ours = dial(c, s, port)?;
    let (_theirs, from) = loop {
        match listener.accept() {
            Ok(accepted) => break accepted,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::yield_now(),
            Err(error) => return Err(error),
        }
    };
    Ok(format!("{first} {}", from == ours.local_addr()?))
}

fn incoming_connections_counted(s: &Side, c: &Side) -> io::Result<String> {
    let (listener, port) = listen(s)?;
    let held = [dial(c, s, port)?, dial(c, s, port)?];
    let accepted: io::Result<Vec<TcpStream>> = listener.incoming().take(2).collect();
    Ok(format!("{} {}", held.len(), accepted?.len()))
}

fn a_peek_and_then_a_read(s: &Side, c: &Side) -> io::Result<String> {
    let (theirs, mut ours) = pair(s, c)?;
    (&theirs).write_all(b"peek")?;
    let mut buffer = [0; 4];
    while ours.peek(&mut buffer)? < 4 {}
    let peeked = buffer;
    ours.read_exact(&mut buffer)?;
    Ok(format!("{}", peeked == buffer))
}

fn both_ends_know_their_addresses(s: &Side, c: &Side) -> io::Result<String> {
    let (theirs, ours) = pair(s, c)?;
    let there = theirs.local_addr()? == ours.peer_addr()?;
    Ok(format!("{there} {}", theirs.peer_addr()? == ours.local_addr()?))
}

fn a_listener_at_a_free_port(s: &Side, _c: &Side) -> io::Result<String> {
    let ((a, _), (b, _)) = (listen(s)?, listen(s)?);
    let (a, b) = (a.local_addr()?, b.local_addr()?);
    let differ = a.port() != 0 && a.port() != b.port();
    Ok(format!("{differ} {}", a.ip().to_string() == s.host()))
}

fn a_port_where_nobody_listens(s: &Side, c: &Side) -> io::Result<String> {
    let (listener, port) = listen(s)?;
    drop(listener);
    Ok(kind(dial(c, s, port)))
}

fn a_port_that_is_taken(s: &Side, _c: &Side) -> io::Result<String> {
    let (_listener, port) = listen(s)?;
    let _entered = s.enter();
    Ok(kind(TcpListener::bind((s.host(), port))))
}

fn an_address_that_is_not_ours(s: &Side, _c: &Side) -> io::Result<String> {
    let _entered = s.enter();
    Ok(format!("{} {}", kind(TcpListener::bind("192.0.2.1:0")), kind(UdpSocket::bind("192.0.2.1:0"))))
}

fn text_that_is_no_address(s: &Side, _c: &Side) -> io::Result<String> {
    let _entered = s.enter();
    Ok(kind(TcpListener::bind("1.2.3.4")))
}

fn an_open_with_a_timeout(s: &Side, c: &Side) -> io::Result<String> {
    let (listener, _) = listen(s)?;
    let _entered = c.enter();
    let address = listener.local_addr()?;
    let stream = TcpStream::connect_timeout(&address, Duration::from_secs(300))?;
    let zero = kind(TcpStream::connect_timeout(&address, Duration::ZERO));
    Ok(format!("{} {zero}", stream.peer_addr()? == listener.local_addr()?))
}

fn a_shutdown_that_wakes_a_reader(s: &Side, c: &Side) -> io::Result<String> {
    let (_theirs, ours) = pair(s, c)?;
    let mut reader = ours.try_clone()?;
    let reading = thread::spawn(move || reader.read(&mut [0; 8]));
    thread::sleep(Duration::from_millis(20));
    ours.shutdown(Shutdown::Both)?;
    Ok(format!("{}", reading.join().expect("no panic")?))
}

fn a_write_after_a_shutdown(s: &Side, c: &Side) -> io::Result<String> {
    let (theirs, mut ours) = pair(s, c)?;
    ours.shutdown(Shutdown::Write)?;
    let error = kind(ours.write(b"x"));
    Ok(format!("{error} {}", (&theirs).read(&mut [0; 8])?))
}

fn a_peer_that_drops_what_it_did_not_read(s: &Side, c: &Side) -> io::Result<String> {
    let (theirs, mut ours) = pair(s, c)?;
    ours.write_all(b"never read")?;
    theirs.peek(&mut [0; 1])?;
    drop(theirs);
    Ok(kind(ours.read(&mut [0; 8])))
}

fn options(s: &Side, c: &Side) -> io::Result<String> {
    let (_theirs, ours) = pair(s, c)?;
    ours.set_nodelay(true)?;
    ours.set_ttl(33)?;
    let zero = kind(ours.set_ttl(0));
    Ok(format!("{} {} {zero} {:?}", ours.nodelay()?, ours.ttl()?, ours.take_error()?.is_none()))
}

fn parts_written_and_read_at_once(s: &Side, c: &Side) -> io::Result<String> {
    let (mut theirs, mut ours) = pair(s, c)?;
    let sent = ours.write_vectored(&[IoSlice::new(b"ab"), IoSlice::new(b"cde")])?;
    while theirs.peek(&mut [0; 5])? < 5 {}
    let (mut a, mut b) = ([0; 3], [0; 5]);
    let got = theirs.read_vectored(&mut [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)])?;
    Ok(format!("{sent} {got} {a:?} {b:?}"))
}

fn frames_with_their_lengths(s: &Side, c: &Side) -> io::Result<String> {
    fn send(to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
        to.write_all(&(bytes.len() as u32).to_be_bytes())?;
        to.write_all(bytes)?;
        to.flush()
    }
    fn receive(from: &mut impl Read) -> io::Result<Vec<u8>> {
        let mut len = [0; 4];
        from.read_exact(&mut len)?;
        let mut bytes = vec![0; u32::from_be_bytes(len) as usize];
        from.read_exact(&mut bytes)?;
        Ok(bytes)
    }
    let (theirs, ours) = pair(s, c)?;
    let mut writer = io::BufWriter::new(ours);
    for len in [0, 1, 5000] {
        send(&mut writer, &vec![9; len])?;
    }
    drop(writer);
    let mut reader = BufReader::new(theirs);
    let mut lens = Vec::new();
    while let Ok(frame) = receive(&mut reader) {
        lens.push(frame.len());
    }
    Ok(format!("{lens:?}"))
}

fn two_threads_that_accept(s: &Side, c: &Side) -> io::Result<String> {
    let (listener, port) = listen(s)?;
    let other = listener.try_clone()?;
    let threads = [listener, other].map(|one| thread::spawn(move || one.accept().map(drop)));
    let _held = [dial(c, s, port)?, dial(c, s, port)?];
    for thread in threads {
        thread.join().expect("no panic")?;
    }
    Ok("both".to_owned())
}

fn datagrams_echoed(s: &Side, c: &Side) -> io::Result<String> {
    let (server, client) = (udp(s)?, udp(c)?);
    let to = server.local_addr()?;
    let echo = thread::spawn(move || -> io::Result<()> {
        let mut buffer = [0; 2048];
        for _ in 0..3 {
            let (len, from) = server.recv_from(&mut buffer)?;
            server.send_to(&buffer[..len], from)?;
        }
        Ok(())
    });
    let mut lens = Vec::new();
    for len in [0, 5, 1400] {
        lens.push(client.send_to(&vec![3; len], to)?);
        let (got, from) = client.recv_from(&mut [0; 2048])?;
        lens.push(if from == to { got } else { usize::MAX });
    }
    echo.join().expect("no panic")?;
    Ok(format!("{lens:?}"))
}

fn connected_datagrams(s: &Side, c: &Side) -> io::Result<String> {
    let (a, b) = udp_pair(s, c)?;
    let sent = a.send(b"hello")?;
    let mut buffer = [0; 3];
    // Bytes without room are lost.
    let got = b.recv(&mut buffer)?;
    let known = b.peer_addr()? == a.local_addr()?;
    let unknown = kind(udp(c)?.peer_addr());
    Ok(format!("{sent} {got} {buffer:?} {known} {unknown}"))
}

fn datagrams_with_timeouts(s: &Side, _c: &Side) -> io::Result<String> {
    let socket = udp(s)?;
    socket.set_read_timeout(Some(Duration::from_millis(20)))?;
    let late = kind(socket.recv_from(&mut [0; 8]));
    socket.set_nonblocking(true)?;
    let now = kind(socket.recv(&mut [0; 8]));
    let zero = kind(socket.set_write_timeout(Some(Duration::ZERO)));
    Ok(format!("{late} {now} {zero} {:?}", socket.read_timeout()?))
}

fn datagrams_peeked_at(s: &Side, c: &Side) -> io::Result<String> {
    let (a, b) = udp_pair(s, c)?;
    a.send(b"twice")?;
    let mut buffer = [0; 8];
    let (peeked, from) = b.peek_from(&mut buffer)?;
    let read = b.recv_from(&mut buffer)?;
    Ok(format!("{peeked} {}", (peeked, from) == read))
}

fn a_clone_of_a_socket_for_datagrams(s: &Side, c: &Side) -> io::Result<String> {
    let (a, b) = udp_pair(s, c)?;
    let clone = b.try_clone()?;
    let receiving = thread::spawn(move || -> io::Result<usize> { clone.recv(&mut [0; 16]) });
    a.send(b"to a clone")?;
    let got = receiving.join().expect("no panic")?;
    b.send(b"and back")?;
    Ok(format!("{got} {}", a.recv(&mut [0; 16])?))
}

fn a_datagram_to_nobody(s: &Side, c: &Side) -> io::Result<String> {
    let (a, b) = (udp(s)?, udp(c)?);
    let to = a.local_addr()?;
    drop(a);
    b.connect(to)?;
    b.set_read_timeout(Some(Duration::from_secs(10)))?;
    b.send(b"x")?;
    Ok(kind(b.recv(&mut [0; 8])))
}

fn options_of_datagrams(s: &Side, _c: &Side) -> io::Result<String> {
    let socket = udp(s)?;
    socket.set_ttl(3)?;
    socket.set_broadcast(true)?;
    let looped = socket.multicast_loop_v4()?;
    socket.set_multicast_loop_v4(false)?;
    let none = socket.take_error()?.is_none();
    Ok(format!(
        "{} {} {looped} {} {none}",
        socket.ttl()?,
        socket.broadcast()?,
        socket.multicast_loop_v4()?
    ))
}

fn something_generic_over_read_and_write(s: &Side, c: &Side) -> io::Result<String> {
    fn greet<S: Read + Write>(mut stream: S) -> io::Result<String> {
        stream.write_all(b"hi")?;
        let mut two = [0; 2];
        stream.read_exact(&mut two)?;
        Ok(String::from_utf8_lossy(&two).into_owned())
    }
    let (theirs, ours) = pair(s, c)?;
    let other = thread::spawn(move || greet(theirs));
    let mine: Box<dyn FnOnce() -> io::Result<String>> = Box::new(move || greet(&ours));
    let greeted = mine()?;
    Ok(greeted + &other.join().expect("no panic")?)
}

/// A program, and its expected output.
type Snippet = (fn(&Side, &Side) -> io::Result<String>, &'static str);

pub(super) const SNIPPETS: &[Snippet] = &[
    (echo_server_with_a_thread_for_each_connection, "one two three"),
    (request_and_response, "gnip"),
    (lines_through_a_buffered_reader, "first|second|third without an end"),
    (lines_through_a_buffered_reader_of_a_reference, "you said hello\n"),
    (a_copy_until_the_end, "300000 300000 true"),
    (a_writer_that_shuts_down_and_reads_to_the_end, "all of it"),
    (clones_for_a_reading_and_a_writing_thread, "true"),
    (one_connection_that_threads_share, "[100, 100, 100, 100]"),
    (a_clone_keeps_the_connection_open, "still here"),
    (a_read_with_a_timeout, "Some(20ms) WouldBlock InvalidInput None"),
    (a_write_with_a_timeout, "Some(20ms) WouldBlock"),
    (a_loop_that_does_not_block, "WouldBlock late"),
    (an_accept_that_does_not_block, "WouldBlock true"),
    (incoming_connections_counted, "2 2"),
    (a_peek_and_then_a_read, "true"),
    (both_ends_know_their_addresses, "true true"),
    (a_listener_at_a_free_port, "true true"),
    (a_port_where_nobody_listens, "ConnectionRefused"),
    (a_port_that_is_taken, "AddrInUse"),
    (an_address_that_is_not_ours, "AddrNotAvailable AddrNotAvailable"),
    (text_that_is_no_address, "InvalidInput"),
    (an_open_with_a_timeout, "true InvalidInput"),
    (a_shutdown_that_wakes_a_reader, "0"),
    (a_write_after_a_shutdown, "BrokenPipe 0"),
    (a_peer_that_drops_what_it_did_not_read, "ConnectionReset"),
    (options, "true 33 InvalidInput true"),
    (parts_written_and_read_at_once, "5 5 [97, 98, 99] [100, 101, 0, 0, 0]"),
    (frames_with_their_lengths, "[0, 1, 5000]"),
    (two_threads_that_accept, "both"),
    (datagrams_echoed, "[0, 0, 5, 5, 1400, 1400]"),
    (connected_datagrams, "5 3 [104, 101, 108] true NotConnected"),
    (datagrams_with_timeouts, "WouldBlock WouldBlock InvalidInput Some(20ms)"),
    (datagrams_peeked_at, "5 true"),
    (a_clone_of_a_socket_for_datagrams, "10 8"),
    (a_datagram_to_nobody, "ConnectionRefused"),
    (options_of_datagrams, "3 true true false true"),
    (something_generic_over_read_and_write, "hihi"),
];
